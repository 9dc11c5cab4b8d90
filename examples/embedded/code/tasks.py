"""Small programming tasks generated from a seed: read a value, change it in one or two steps, print it.

    Read two numbers. Take the larger. First multiply by 3. Then add 2. Print it.

    a,b=map(int,input().split())
    x=max(a,b)
    y=x*3
    z=y+2
    print(z)

Every line of the program corresponds to a sentence of the task, so that a model of a few hundred thousand
parameters can write it. Tasks are equal if their programs are; training and test tasks of `generate_split`
are all different.
"""

from __future__ import annotations

import operator
import random
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from agent_system.errors import AgentSystemError
from agent_system.workflows.code.world.problem import Case
from agent_system.workflows.code.world.rows import make_row
from agent_system.workflows.data import TaskSet

DATA_SOURCE = "verl_mas/small_programs"
WORDS = ("at", "go", "cat", "dog", "sun", "bird", "tree")
GOLDEN_TESTS = 5
MOST_TRIES = 200


@dataclass(frozen=True)
class Source:
    """An input and the value that is taken from it.

    Attributes:
        words: its description in the task.
        read: line of the program that reads the input.
        take: its next line, which sets `x`; empty if `read` does.
        kind: kind of input: number | two | list | word.
        value: maps the input to the value.
        name: name of the value in the Tester's replies.
    """

    words: str
    read: str
    take: str
    kind: str
    value: Callable[[Any], Any]
    name: str


@dataclass(frozen=True)
class Step:
    """One change of a value.

    Attributes:
        words: its description in the task.
        code: expression of the new value, with `{x}` for the old one.
        change: maps the old value to the new one.
        sign: its form in a calculation, after the value; empty if a calculation shows the new value only.
    """

    words: str
    code: str
    change: Callable[[Any], Any]
    sign: str = ""


TWO = "a,b=map(int,input().split())"
LIST = "v=list(map(int,input().split()))"
SOURCES = (
    Source("Read a number.", "x=int(input())", "", "number", lambda n: n, "number"),
    Source("Read two numbers. Take their sum.", TWO, "x=a+b", "two", sum, "sum"),
    Source("Read two numbers. Take their product.", TWO, "x=a*b", "two", lambda v: v[0] * v[1], "product"),
    Source("Read two numbers. Take the larger.", TWO, "x=max(a,b)", "two", max, "larger"),
    Source("Read two numbers. Take the smaller.", TWO, "x=min(a,b)", "two", min, "smaller"),
    Source("Read a list. Take the largest.", LIST, "x=max(v)", "list", max, "largest"),
    Source("Read a list. Take the smallest.", LIST, "x=min(v)", "list", min, "smallest"),
    Source("Read a list. Take the sum.", LIST, "x=sum(v)", "list", sum, "sum"),
    Source("Read a list. Take its length.", LIST, "x=len(v)", "list", len, "length"),
    Source("Read a list. Take the first.", LIST, "x=v[0]", "list", lambda v: v[0], "first"),
    Source("Read a list. Take the last.", LIST, "x=v[-1]", "list", lambda v: v[-1], "last"),
    Source("Read a word. Take its length.", "s=input()", "x=len(s)", "word", len, "length"),
)
LETTERS = Source("Read a word.", "x=input()", "", "word", lambda s: s, "word")


def _more(c: int) -> Step:
    return Step(
        f"say yes if more than {c} else no.",
        f'"yes" if {{x}}>{c} else "no"',
        lambda x: "yes" if x > c else "no",
        f">{c}",
    )


def _less(c: int) -> Step:
    return Step(
        f"say yes if less than {c} else no.",
        f'"yes" if {{x}}<{c} else "no"',
        lambda x: "yes" if x < c else "no",
        f"<{c}",
    )


ARITHMETIC = (
    *(Step(f"add {c}.", f"{{x}}+{c}", partial(operator.add, c), f"+{c}") for c in range(2, 10)),
    *(Step(f"subtract {c}.", f"{{x}}-{c}", partial(operator.add, -c), f"-{c}") for c in range(2, 10)),
    *(Step(f"multiply by {c}.", f"{{x}}*{c}", partial(operator.mul, c), f"*{c}") for c in (2, 3)),
)
COMPARISONS = (*(_more(c) for c in range(3, 10)), *(_less(c) for c in range(3, 10)))
TEXT = (
    Step("turn it round.", "{x}[::-1]", lambda s: s[::-1]),
    Step("use capitals.", "{x}.upper()", lambda s: s.upper()),
    Step("take the first letter.", "{x}[0]", lambda s: s[0]),
    Step("take the last letter.", "{x}[-1]", lambda s: s[-1]),
    *(Step(f"repeat it {c} times.", f"{{x}}*{c}", partial(operator.mul, c)) for c in (2, 3, 4)),
)
ORDINALS = ("First", "Then")
NAMES = ("x", "y", "z")


@dataclass(frozen=True)
class SmallTask:
    """A task: an input, and one or two steps."""

    source: Source
    steps: tuple[Step, ...]

    @property
    def question(self) -> str:
        """The task in words."""
        changes = (f"{ordinal} {step.words}" for ordinal, step in zip(ORDINALS, self.steps, strict=False))
        return " ".join([self.source.words, *changes, "Print it."])

    @property
    def program(self) -> str:
        """The reference solution, which is also the key of the task."""
        return write_program(self.source, self.steps)

    def values(self, read: Any) -> list[Any]:
        """Return the value taken from the input and the value after each step; the last one is printed."""
        values = [self.source.value(read)]
        for step in self.steps:
            values.append(step.change(values[-1]))
        return values

    def case(self, read: Any) -> Case:
        """Return the test with this input."""
        return Case(f"{write_input(read)}\n", f"{self.values(read)[-1]}\n")


def write_program(source: Source, steps: Sequence[Step]) -> str:
    """Return the program that reads the input, makes these changes and prints the result."""
    lines = [
        f"{new}={step.code.format(x=old)}" for step, old, new in zip(steps, NAMES, NAMES[1:], strict=False)
    ]
    return "\n".join(
        [source.read, *([source.take] if source.take else []), *lines, f"print({NAMES[len(steps)]})"]
    )


def write_input(read: Any) -> str:
    """Return the input as text for stdin."""
    return " ".join(map(str, read)) if isinstance(read, list) else str(read)


def draw_input(rng: random.Random, kind: str, low: int, high: int) -> Any:
    """Draw an input of this kind, with numbers from `low` to `high`."""
    if kind == "word":
        return rng.choice(WORDS)
    if kind == "number":
        return rng.randint(low, high)
    return [rng.randint(low, high) for _ in range(2 if kind == "two" else rng.randint(2, 3))]


def draw_task(rng: random.Random) -> SmallTask:
    """Draw a task: 8 % change a word; 15 % have one step, the others two."""
    num_steps = 1 if rng.random() < 0.15 else 2
    if rng.random() < 0.08:
        return SmallTask(LETTERS, tuple(rng.sample(TEXT, num_steps)))
    last = rng.choice(COMPARISONS if rng.random() < 0.3 else ARITHMETIC)
    return SmallTask(rng.choice(SOURCES), (*(rng.choice(ARITHMETIC) for _ in range(num_steps - 1)), last))


def generate(
    count: int, seed: int, exclude: Collection[str] = (), *, repeat: bool = False
) -> list[SmallTask]:
    """Return `count` tasks whose programs are not in `exclude`; deterministic in its arguments.

    Args:
        repeat: tasks may be repeated.

    Raises:
        AgentSystemError: there are too few different tasks.
    """
    rng = random.Random(f"small-programs-{seed}")
    seen = set(exclude)
    tasks: list[SmallTask] = []
    tries = 0
    while len(tasks) < count:
        task = draw_task(rng)
        tries += 1
        if task.program not in seen:
            tasks.append(task)
            tries = 0
            if not repeat:
                seen.add(task.program)
        elif tries > MOST_TRIES:
            raise AgentSystemError(
                f"found {len(tasks)} different tasks, {count} were asked for; there are some 8,000 in all"
            )
    return tasks


def generate_split(num_train: int, num_test: int, seed: int) -> tuple[list[SmallTask], list[SmallTask]]:
    """Return (train, test) tasks without overlap."""
    test = generate(num_test, 2 * seed + 1)
    return generate(num_train, 2 * seed, {task.program for task in test}), test


def to_row(task: SmallTask, index: int, split: str) -> dict[str, Any]:
    """Return the task as a row of verl's schema; its golden tests depend on the task only."""
    rng = random.Random(f"golden-{task.program}")
    cases: dict[str, Case] = {}
    while len(cases) < GOLDEN_TESTS:
        case = task.case(draw_input(rng, task.source.kind, -9, 20))
        cases.setdefault(str(case.given), case)
    return make_row(
        task.question,
        list(cases.values()),
        reference=task.program,
        data_source=DATA_SOURCE,
        split=split,
        index=index,
    )


TASKS = TaskSet(generate_split, to_row, key=lambda task: task.program)
