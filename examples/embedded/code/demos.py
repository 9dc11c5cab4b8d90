"""Demonstrations of the small programs by a Coder and a Tester, which act at the same time.

A careful program has a line for every step of the task, and a careful test has an output that is worked out
step by step. By habit, the Coder stops after the first step, which is right if there is no second one, and
the Tester guesses the output.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from agent_system.workflows.code.team import CodeAgent, CodeOptions, CoderAgent, TesterAgent
from examples.embedded.code.tasks import (
    ORDINALS,
    TASKS,
    WORDS,
    SmallTask,
    draw_input,
    generate,
    write_input,
    write_program,
)
from examples.embedded.course import Course, Messages, World, conversation

SMALL_NUMBERS = {"number": (1, 20), "two": (1, 6), "list": (1, 6), "word": (0, 0)}


@dataclass(frozen=True)
class Habits:
    """Probabilities of careful replies.

    Attributes:
        write_all: share of programs with a line for every step; the others stop after the first.
        work_out: share of tests that are worked out; the others are guessed.
        guess_right: share of guesses that are right.
        tester: share of demonstrations that are the Tester's.
    """

    write_all: float = 0.3
    work_out: float = 0.4
    guess_right: float = 0.1
    tester: float = 0.5


CAREFUL = Habits(write_all=1.0, work_out=1.0)


@dataclass(frozen=True)
class CodeCourse(Course):
    """See `Course`.

    Attributes:
        max_turns: turns of one demonstrated episode.
        stray: share of episodes that begin after a careless program and a guessed test, which are not
            demonstrated, so that the demonstrations include the states after them.
    """

    habits: Habits = Habits()
    careful: Habits = CAREFUL
    max_turns: int = 2
    stray: float = 0.35


@dataclass(frozen=True)
class TurnResult:
    """Result of a turn: the number of steps of its program, and the test that it failed."""

    steps: int
    read: Any
    expected: str


def make_demos(course: CodeCourse, seed: int, exclude: Collection[str] = ()) -> list[Messages]:
    """Return the conversations of the course; `exclude` holds programs of tasks left out."""
    rng = random.Random(f"code-demos-{seed}")
    tasks = generate(course.count, 10 * seed + 7, exclude, repeat=True)
    team = Demonstrators(course, rng)
    return course.conversations(
        rng, tasks, lambda task, habits: team.episode(task, habits, stray=rng.random() < course.stray)[0]
    )


def team_success(course: CodeCourse, habits: Habits, tasks: Sequence[SmallTask], seed: int = 0) -> float:
    """Return the share of `tasks` for which the last program of demonstrators with `habits` is right."""
    team = Demonstrators(course, random.Random(f"code-success-{seed}"))
    return sum(team.episode(task, habits)[1] for task in tasks) / len(tasks)


class Demonstrators:
    """Demonstrators of both roles in the short prompt style, both at the same time."""

    def __init__(self, course: CodeCourse, rng: random.Random) -> None:
        options = CodeOptions(prompt_style="short")
        self.coder = CoderAgent(config=options)
        self.tester = TesterAgent(config=options)
        self.course = course
        self.rng = rng

    def episode(self, task: SmallTask, habits: Habits, stray: bool = False) -> tuple[list[Messages], bool]:
        """Return the conversations of one episode, one per turn, and whether its last program is right."""
        rng = self.rng
        conversations: list[Messages] = []
        past = self._outcome(task, 1, *self._guessed(task, 0.0)) if stray else None
        steps = 0
        for _ in range(self.course.max_turns):
            steps = len(task.steps) if (whole := rng.random() < habits.write_all) else 1
            if worked := rng.random() < habits.work_out:
                read = self._choose(task)
                expected = str(task.values(read)[-1])
            else:
                read, expected = self._guessed(task, habits.guess_right)
            if rng.random() < habits.tester:
                reply = (
                    work(task, read)
                    if worked
                    else f"Guess. <input>{write_input(read)}</input> <output>{expected}</output>"
                )
                conversations.append(self._conversation(self.tester, task, past, reply))
            else:
                reply = f"{'Every step.' if whole else 'Quick.'}\n```python\n{program(task, steps)}\n```"
                conversations.append(self._conversation(self.coder, task, past, reply))
            past = self._outcome(task, steps, read, expected)
            if past is None:
                break
        return conversations, steps == len(task.steps)

    def _outcome(self, task: SmallTask, steps: int, read: Any, expected: str) -> TurnResult | None:
        """Return the result for the next turn; None if the program passes the test."""
        return None if str(task.values(read)[steps]) == expected else TurnResult(steps, read, expected)

    def _choose(self, task: SmallTask) -> Any:
        """Return an input that is easy to work out: small numbers, and no intermediate value below 0 if
        possible.
        """
        reads = [draw_input(self.rng, task.source.kind, *SMALL_NUMBERS[task.source.kind]) for _ in range(4)]
        return max(
            reads,
            key=lambda read: min(0, *(value if isinstance(value, int) else 0 for value in task.values(read))),
        )

    def _guessed(self, task: SmallTask, right: float) -> tuple[Any, str]:
        """Return an input and a guessed output, which is right with probability `right`."""
        rng = self.rng
        read = self._choose(task)
        value = task.values(read)[-1]
        if rng.random() < right:
            return read, str(value)
        if value in ("yes", "no"):
            return read, rng.choice(("yes", "no"))
        return read, str(value + rng.choice((-6, -4, -3, -2, -1, 1, 2, 3, 4, 6))) if isinstance(
            value, int
        ) else rng.choice(WORDS)

    def _conversation(
        self, agent: CodeAgent, task: SmallTask, past: TurnResult | None, reply: str
    ) -> Messages:
        shown: dict[str, Any] = (
            {}
            if past is None
            else {"program": program(task, past.steps), "mismatches": [self._mismatch(task, past)]}
        )
        return conversation(agent, task.question, reply, **shown)

    def _mismatch(self, task: SmallTask, past: TurnResult) -> dict[str, str]:
        return {
            "given": write_input(past.read),
            "expected": past.expected,
            "found": str(task.values(past.read)[past.steps]),
        }


def program(task: SmallTask, steps: int) -> str:
    """Return the program that stops after `steps` steps."""
    return write_program(task.source, task.steps[:steps])


def work(task: SmallTask, read: Any) -> str:
    """Return a test that is worked out: `Work. <input>3 7</input> larger 7. First 7*3=21. Then 21+2=23.
    <output>23</output>`.
    """
    values = task.values(read)
    lines = [f"{task.source.name} {values[0]}."]
    for ordinal, step, before, after in zip(ORDINALS, task.steps, values, values[1:], strict=False):
        lines.append(f"{ordinal} {before}{step.sign}={after}." if step.sign else f"{ordinal} {after}.")
    return f"Work. <input>{write_input(read)}</input> {' '.join(lines)} <output>{values[-1]}</output>"


WORLD = World(CodeCourse(), TASKS, make_demos)
