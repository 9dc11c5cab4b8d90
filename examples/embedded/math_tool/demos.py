"""Demonstrations of the word problems by a Reasoner and a Tool-user, which act at the same time.

A careful Reasoner works a problem out line by line, and a careful program has a line for every step. By habit, the Reasoner guesses, and
the Tool-user stops after the first step.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from agent_system.workflows.math_tool.team import MathToolOptions, ReasonerAgent, ToolUserAgent
from examples.embedded.course import Course, Messages, World, conversation
from examples.embedded.math.demos import guess
from examples.embedded.math.tasks import TASKS, Problem, generate


@dataclass(frozen=True)
class Habits:
    """Probabilities of careful replies.

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
class MathToolCourse(Course):
    """See `Course`.

    Attributes:
        max_turns: turns of one demonstrated episode.
        easy: share of episodes with problems of one or two steps.
        stray: share of episodes that begin after a careless turn, which is not demonstrated, so that the demonstrations include the states
            after it.
    """

    count: int = 32_000
    habits: Habits = Habits()
    careful: Habits = CAREFUL
    max_turns: int = 2
    easy: float = 0.25
    stray: float = 0.3


def make_demos(course: MathToolCourse, seed: int, exclude: Collection[str] = ()) -> list[Messages]:
    """Return the conversations of the course; none about a question in `exclude`."""
    rng = random.Random(f"math-tool-demos-{seed}")
    num_easy = int(course.count * course.easy)
    problems = generate(num_easy, 10 * seed + 7, exclude=exclude, min_steps=1, max_steps=2)
    problems += generate(course.count - num_easy, 10 * seed + 8, exclude=exclude)
    team = Demonstrators(course, rng)
    return course.conversations(rng, problems, lambda problem, habits: team.episode(problem, habits, stray=rng.random() < course.stray)[0])


def team_success(course: MathToolCourse, habits: Habits, problems: Sequence[Problem], seed: int = 0) -> float:
    """Return the share of `problems` for which the last answer of demonstrators with `habits` is right."""
    team = Demonstrators(course, random.Random(f"math-tool-success-{seed}"))
    return sum(team.episode(problem, habits)[1] for problem in problems) / len(problems)


class Demonstrators:
    """Demonstrators of both roles in the short prompt style, both at the same time."""

    def __init__(self, course: MathToolCourse, rng: random.Random) -> None:
        options = MathToolOptions(prompt_style="short")
        self.reasoner = ReasonerAgent(config=options)
        self.tool = ToolUserAgent(config=options)
        self.course = course
        self.rng = rng

    def episode(self, problem: Problem, habits: Habits, stray: bool = False) -> tuple[list[Messages], bool]:
        """Return the conversations of one episode, one per turn, and whether the Reasoner's last answer is right."""
        rng = self.rng
        conversations: list[Messages] = []
        last = {} if not stray else _answers(guess(rng, problem, 0.0), problem.steps[0].result)
        answer = 0
        for _ in range(self.course.max_turns):
            if rng.random() < habits.work:
                answer, reasoning = problem.answer, problem.worked_solution()
            else:
                answer = guess(rng, problem, habits.guess_right)
                reasoning = f"I guess \\boxed{{{answer}}}"
            whole = rng.random() < habits.write_all
            steps = len(problem.steps) if whole else 1
            if rng.random() < habits.tool:
                reply = f"{'Every step.' if whole else 'Quick.'}\n```python\n{program(problem, steps)}\n```"
                conversations.append(conversation(self.tool, problem.question, reply, last=last))
            else:
                conversations.append(conversation(self.reasoner, problem.question, reasoning, last=last))
            printed = problem.steps[steps - 1].result
            if answer == printed:
                break
            last = _answers(answer, printed)
        return conversations, answer == problem.answer


def program(problem: Problem, steps: int) -> str:
    """Return the program that stops after `steps` steps."""
    first, *lines = [f"x={problem.steps[0].left}", *(f"x=x{step.op}{step.right}" for step in problem.steps[:steps])]
    return "\n".join([first, *lines, "print(x)"])


def _answers(answer: int, printed: int) -> dict[str, str]:
    return {"reasoner": str(answer), "tool": str(printed), "program": ""}


WORLD = World(MathToolCourse(), TASKS, make_demos, borrows=("math",))
