"""Demonstrations of word problems with large numbers by a Reasoner and a Tool-user, which act at the same
time.

A careful Reasoner works a problem out line by line. A careful Tool-user calls the tool `python` with a
program that has a line for every step, and answers with what it prints. By habit, the Reasoner guesses, and
the Tool-user guesses too, stops after the first step, or writes a call that is no JSON.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

from agent_system.tools.formats import read_calls, syntaxes_of
from agent_system.workflows.math_tool.team import MathToolOptions, ReasonerAgent, ToolUserAgent
from examples.embedded.course import Course, Messages, World, conversation
from examples.embedded.math.demos import guess
from examples.embedded.math.tasks import TASKS, Problem, generate, generate_split

SCALE = 10  # factor of the numbers of `math`: too large to be worked out reliably by a tiny model


@dataclass(frozen=True)
class Habits:
    """Probabilities of careful replies. The warm-started model writes fewer long ones: the loss is a mean
    over the tokens of a batch, whose replies have similar lengths, so that the first token of a call has a
    fifth of the weight of the first token of a guess.

    Attributes:
        work: share of the Reasoner's answers that are worked out; the others are guessed.
        call: share of the Tool-user's answers for which it calls the tool; the others are guessed.
        write_all: share of programs with a line for every step; the others stop after the first.
        malformed: share of calls that are no JSON; a guess follows.
        guess_right: share of guesses that are right.
        tool: share of demonstrations that are the Tool-user's.
    """

    work: float = 0.25
    call: float = 0.8
    write_all: float = 0.5
    malformed: float = 0.15
    guess_right: float = 0.15
    tool: float = 0.6


CAREFUL = Habits(work=1.0, call=1.0, write_all=1.0, malformed=0.0)


@dataclass(frozen=True)
class MathToolCourse(Course):
    """See `Course`.

    Attributes:
        max_turns: turns of one demonstrated episode.
        easy: share of episodes with problems of one or two steps.
        stray: share of episodes that begin after a careless turn, which is not demonstrated, so that the
            demonstrations include the states after it.
    """

    count: int = 24_000
    batch_size: int = 16
    habits: Habits = Habits()
    careful: Habits = CAREFUL
    max_turns: int = 2
    easy: float = 0.25
    stray: float = 0.3


def make_demos(course: MathToolCourse, seed: int, exclude: Collection[str] = ()) -> list[Messages]:
    """Return the conversations of the course; none about a question in `exclude`."""
    rng = random.Random(f"math-tool-demos-{seed}")
    num_easy = int(course.count * course.easy)
    problems = generate(num_easy, 10 * seed + 7, exclude=exclude, min_steps=1, max_steps=2, scale=SCALE)
    problems += generate(course.count - num_easy, 10 * seed + 8, exclude=exclude, scale=SCALE)
    team = Demonstrators(course, rng)
    return course.conversations(
        rng,
        problems,
        lambda problem, habits: team.episode(problem, habits, stray=rng.random() < course.stray)[0],
    )


def team_success(course: MathToolCourse, habits: Habits, problems: Sequence[Problem], seed: int = 0) -> float:
    """Return the share of `problems` for which the Tool-user's last answer is right, with demonstrators with
    `habits`.
    """
    team = Demonstrators(course, random.Random(f"math-tool-success-{seed}"))
    return sum(team.episode(problem, habits)[1] for problem in problems) / len(problems)


class Demonstrators:
    """Demonstrators of both roles in the short prompt style, both at the same time."""

    def __init__(self, course: MathToolCourse, rng: random.Random) -> None:
        options = MathToolOptions(prompt_style="short")
        self.reasoner = ReasonerAgent(config=options)
        self.tool = _tool_user()
        self.course = course
        self.rng = rng

    def episode(self, problem: Problem, habits: Habits, stray: bool = False) -> tuple[list[Messages], bool]:
        """Return the conversations of one episode, one per turn, and whether the Tool-user's last answer is
        right.
        """
        rng = self.rng
        conversations: list[Messages] = []
        last = {} if not stray else _answers(guess(rng, problem, 0.0), problem.steps[0].result)
        found = 0
        for _ in range(self.course.max_turns):
            if rng.random() < habits.work:
                answer, reasoning = problem.answer, problem.worked_solution()
            else:
                answer = guess(rng, problem, habits.guess_right)
                reasoning = _guessed(answer)
            found, rounds = self._rounds(problem, habits)
            if rng.random() < habits.tool:
                first, *rest = rounds
                conversations.append(
                    [*conversation(self.tool, problem.question, first["content"], last=last), *rest]
                )
            else:
                conversations.append(conversation(self.reasoner, problem.question, reasoning, last=last))
            if answer == found:
                break
            last = _answers(answer, found)
        return conversations, found == problem.answer

    def _rounds(self, problem: Problem, habits: Habits) -> tuple[int, Messages]:
        """Return the Tool-user's answer, and its replies with the messages of the tool between them."""
        rng = self.rng
        guessed = guess(rng, problem, habits.guess_right)
        if rng.random() >= habits.call:
            return guessed, [_said(_guessed(guessed))]
        steps = len(problem.steps) if rng.random() < habits.write_all else 1
        call = tool_call(program(problem, steps))
        if rng.random() < habits.malformed:
            call = call.replace("}}", "}")
            (error,), _ = asyncio.run(self.tool.answer(read_calls(call, syntaxes_of("hermes")), 0))
            return guessed, [_said(call), error, _said(_guessed(guessed))]
        printed = problem.steps[steps - 1].result
        return printed, [
            _said(call),
            {"role": "tool", "content": f"{printed}\n"},
            _said(f"\\boxed{{{printed}}}"),
        ]


def program(problem: Problem, steps: int) -> str:
    """Return the program that stops after `steps` steps."""
    first, *lines = [
        f"x={problem.steps[0].left}",
        *(f"x=x{step.op}{step.right}" for step in problem.steps[:steps]),
    ]
    return "\n".join([first, *lines, "print(x)"])


def tool_call(code: str) -> str:
    """Return a call of `python` in the format that the tiny model's chat template asks for."""
    return f"<tool_call>{json.dumps({'name': 'python', 'arguments': {'code': code}})}</tool_call>"


def tools(demo: Messages) -> list[Any]:
    """Return the schemas of the Tool-user's tools for one of its conversations, else nothing."""
    return (
        _tool_user().schemas
        if demo[0]["content"].startswith(_tool_user().style.tool.partition("{")[0])
        else []
    )


@cache
def _tool_user() -> ToolUserAgent:
    return ToolUserAgent(config=MathToolOptions(prompt_style="short"))


def _said(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


def _guessed(answer: int) -> str:
    return f"I guess \\boxed{{{answer}}}"


def _answers(answer: int, found: int) -> dict[str, str]:
    return {"reasoner": str(answer), "tool": str(found)}


WORLD = World(
    MathToolCourse(),
    replace(TASKS, generate=partial(generate_split, scale=SCALE)),
    make_demos,
    borrows=("math",),
    tools=tools,
)
