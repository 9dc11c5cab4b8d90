"""Demonstrations of both roles for the warm start of a tiny model, on the word problems of the math workflow.

They first teach mostly a skill and then a habit. The skill: work a problem out line by line; write a program with a line for every step.
The habit of the last part: the Reasoner mostly guesses, and the Tool-user mostly stops after the first step. So the warm-started team knows
how to be careful but seldom is, and reinforcement learning, which sees no demonstration, can find out that care pays. `team_success`
says how often demonstrators with given habits end with a right answer.

The prompts are made by the agents of the workflow in the short style, so they are what the team reads later.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from agent_system.workflows.math.demos import guess
from agent_system.workflows.math.generate import Problem, generate
from agent_system.workflows.math_tool.agents import MathToolAgent, ReasonerAgent, ToolUserAgent
from agent_system.workflows.math_tool.options import MathToolOptions

Messages = list[dict[str, str]]


@dataclass(frozen=True)
class Habits:
    """How often the demonstrators take care.

    Attributes:
        work: share of the Reasoner's answers that are worked out; the others are guessed.
        write_all: share of programs with a line for every step; the others stop after the first.
        guess_right: share of guesses that are right.
        tool: share of demonstrations that are the Tool-user's.
    """

    work: float = 0.25
    write_all: float = 0.3
    guess_right: float = 0.15
    tool: float = 0.5


CAREFUL = Habits(work=1.0, write_all=1.0)


@dataclass(frozen=True)
class Course:
    """What a warm start shows, in this order; shares of `count`.

    Attributes:
        count: demonstrations in all.
        max_turns: of one demonstrated episode.
        easy: share of episodes about problems of one or two steps.
        stray: share of episodes that begin after a careless turn, which show how to go on from there; that turn is never demonstrated.
        habits_from: the share after which `habits` rule; until then most are careful.
        habits_before: share of episodes by `habits` until then, so that both ways are known.
        habits: see `Habits`.
    """

    count: int = 32_000
    max_turns: int = 2
    easy: float = 0.25
    stray: float = 0.3
    habits_from: float = 0.75
    habits_before: float = 0.15
    habits: Habits = Habits()


def make_demos(course: Course, seed: int, exclude: Collection[str] = ()) -> list[Messages]:
    """Return `course.count` conversations (prompt and reply) in the order of the course; none about a question in `exclude`."""
    rng = random.Random(f"math-tool-demos-{seed}")
    num_easy = int(course.count * course.easy)
    problems = generate(num_easy, 10 * seed + 7, exclude=frozenset(exclude), min_steps=1, max_steps=2)
    problems += generate(course.count - num_easy, 10 * seed + 8, exclude=frozenset(exclude))
    turning_point = course.count * course.habits_from
    team = Demonstrators(course, rng)
    conversations: list[Messages] = []
    for problem in problems:
        habitual = len(conversations) >= turning_point or rng.random() < course.habits_before
        conversations += team.episode(problem, course.habits if habitual else CAREFUL, stray=rng.random() < course.stray)[0]
    return conversations[: course.count]


def team_success(course: Course, habits: Habits, problems: Sequence[Problem], seed: int = 0) -> float:
    """Return the share of `problems` for which demonstrators with `habits` end with a right answer."""
    team = Demonstrators(course, random.Random(f"math-tool-success-{seed}"))
    return sum(team.episode(problem, habits)[1] for problem in problems) / len(problems)


class Demonstrators:
    """Plays both roles in the short prompt style, both speaking at the same time."""

    def __init__(self, course: Course, rng: random.Random) -> None:
        options = MathToolOptions(prompt_style="short")
        self.reasoner = ReasonerAgent(config=options)
        self.tool = ToolUserAgent(config=options)
        self.course = course
        self.rng = rng

    def episode(self, problem: Problem, habits: Habits, stray: bool = False) -> tuple[list[Messages], bool]:
        """Return the conversations of one episode, one a turn, and whether the Reasoner's last answer is right."""
        rng = self.rng
        conversations: list[Messages] = []
        last = {} if not stray else _told(guess(rng, problem, 0.0), problem.steps[0].result)
        answer = 0
        for _ in range(self.course.max_turns):
            if rng.random() < habits.work:
                answer, said = problem.answer, problem.worked_solution()
            else:
                answer = guess(rng, problem, habits.guess_right)
                said = f"I guess \\boxed{{{answer}}}"
            whole = rng.random() < habits.write_all
            steps = len(problem.steps) if whole else 1
            if rng.random() < habits.tool:
                reply = f"{'Every step.' if whole else 'Quick.'}\n```python\n{program(problem, steps)}\n```"
                conversations.append(self._conversation(self.tool, problem, last, reply))
            else:
                conversations.append(self._conversation(self.reasoner, problem, last, said))
            printed = problem.steps[steps - 1].result
            if answer == printed:
                break
            last = _told(answer, printed)
        return conversations, answer == problem.answer

    def _conversation(self, agent: MathToolAgent, problem: Problem, last: dict[str, str], reply: str) -> Messages:
        variables = {"env_prompt": problem.question, "last": last, "team_context": "", "step": 1, "memory": ""}
        return [*agent.messages(variables), {"role": "assistant", "content": reply}]


def program(problem: Problem, steps: int) -> str:
    """The program that stops after so many steps."""
    first, *lines = [f"x={problem.steps[0].left}", *(f"x=x{step.op}{step.right}" for step in problem.steps[:steps])]
    return "\n".join([first, *lines, "print(x)"])


def _told(answer: int, printed: int) -> dict[str, str]:
    return {"reasoner": str(answer), "tool": str(printed), "program": ""}
