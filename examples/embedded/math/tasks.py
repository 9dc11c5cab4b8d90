"""Arithmetic word problems generated from a seed: short stories of two or three steps with small integers.

A problem starts with a quantity and changes it once per step, so that it can be solved line by line:

    Nina has 6 coins. First Nina buys 7 more. Then Omar takes 4 of them. How many coins does Nina have?
    First 6+7=13. Then 13-4=9. \\boxed{9}

Training and test problems of `generate_split` have no common question. Rows follow verl's schema.
"""

from __future__ import annotations

import random
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from agent_system.workflows.data import TaskSet

DATA_SOURCE = "verl_mas/word_problems"

NAMES = (
    "Anna",
    "Ben",
    "Carla",
    "David",
    "Emma",
    "Felix",
    "Grace",
    "Hugo",
    "Iris",
    "Jonas",
    "Kira",
    "Leo",
    "Maya",
    "Nina",
    "Omar",
    "Paula",
)
OBJECTS = (
    "apples",
    "books",
    "cards",
    "coins",
    "cups",
    "eggs",
    "keys",
    "lamps",
    "nuts",
    "pens",
    "pins",
    "rings",
    "shells",
    "stamps",
    "stones",
    "toys",
)
STARTS = (
    "{name} has {n} {things}.",
    "{name} owns {n} {things}.",
    "There are {n} {things} on the table of {name}.",
)
ORDINALS = ("First", "Then", "Next", "Finally")
EVENTS = {
    "+": ("{name} buys {n} more.", "{name} finds {n} more.", "{other} gives {n} more."),
    "-": ("{name} loses {n}.", "{name} sells {n} to {other}.", "{other} takes {n} of them."),
    "*": ("a trick makes {n} times as many.", "their number grows {n} times."),
}
QUESTIONS = ("How many {things} does {name} have?", "How many {things} are there now?")
LARGEST_VALUE = 40
LARGEST_FACTOR_BASE = 10


@dataclass(frozen=True)
class Step:
    """One line of a worked solution: `left op right = result`."""

    left: int
    op: str
    right: int
    result: int

    def __str__(self) -> str:
        return f"{self.left}{self.op}{self.right}={self.result}."


@dataclass(frozen=True)
class Problem:
    """A question in words, the steps that solve it, and its answer."""

    question: str
    steps: tuple[Step, ...]

    @property
    def answer(self) -> int:
        return self.steps[-1].result

    def worked_solution(self) -> str:
        """Return every step, then the boxed answer."""
        return f"{self.working()} \\boxed{{{self.answer}}}"

    def working(self) -> str:
        """Return every step in words: `First 6+7=13. Then 13-4=9.`"""
        return " ".join(f"{ORDINALS[i]} {step}" for i, step in enumerate(self.steps))


def make_problem(rng: random.Random, num_steps: int, scale: int = 1) -> Problem:
    """Draw one problem with `num_steps` changes; every value stays within 1..LARGEST_VALUE * scale."""
    name, other = rng.sample(NAMES, 2)
    things = rng.choice(OBJECTS)
    value = rng.randint(3 * scale, 12 * scale)
    sentences = [rng.choice(STARTS).format(name=name, n=value, things=things)]
    steps: list[Step] = []
    for ordinal in ORDINALS[:num_steps]:
        step = _draw_step(rng, value, scale)
        event = rng.choice(EVENTS[step.op]).format(name=name, other=other, n=step.right)
        sentences.append(f"{ordinal} {event}")
        steps.append(step)
        value = step.result
    sentences.append(rng.choice(QUESTIONS).format(name=name, things=things))
    return Problem(" ".join(sentences), tuple(steps))


def _draw_step(rng: random.Random, value: int, scale: int) -> Step:
    choices = ["+"] if value + 9 * scale <= LARGEST_VALUE * scale else []
    if value > 3 * scale:
        choices.append("-")
    if 2 <= value <= LARGEST_FACTOR_BASE * scale:
        choices.append("*")
    op = rng.choice(choices)
    if op == "+":
        right = rng.randint(2 * scale, 9 * scale)
        return Step(value, op, right, value + right)
    if op == "-":
        right = rng.randint(2 * scale, min(9 * scale, value - 1))
        return Step(value, op, right, value - right)
    right = rng.randint(2, 3)
    return Step(value, op, right, value * right)


def generate(
    count: int,
    seed: int,
    *,
    exclude: Collection[str] = (),
    min_steps: int = 2,
    max_steps: int = 3,
    scale: int = 1,
) -> list[Problem]:
    """Return `count` problems with distinct questions that are not in `exclude`; deterministic in its
    arguments.

    Args:
        scale: factor of the numbers, except for those that multiply.
    """
    rng = random.Random(seed)
    seen: set[str] = set()
    problems: list[Problem] = []
    while len(problems) < count:
        problem = make_problem(rng, rng.randint(min_steps, max_steps), scale)
        if problem.question in seen or problem.question in exclude:
            continue
        seen.add(problem.question)
        problems.append(problem)
    return problems


def generate_split(
    num_train: int, num_test: int, seed: int, *, scale: int = 1
) -> tuple[list[Problem], list[Problem]]:
    """Return (train, test) problems without a common question."""
    test = generate(num_test, seed=2 * seed + 1, scale=scale)
    train = generate(
        num_train, seed=2 * seed, exclude=frozenset(problem.question for problem in test), scale=scale
    )
    return train, test


def to_row(problem: Problem, index: int, split: str) -> dict[str, Any]:
    """Return the problem as a row of verl's schema, with its worked solution in `extra_info`."""
    return {
        "data_source": DATA_SOURCE,
        "prompt": [{"role": "user", "content": problem.question}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": str(problem.answer)},
        "extra_info": {
            "split": split,
            "index": index,
            "solution": problem.worked_solution(),
            "num_steps": len(problem.steps),
        },
    }


TASKS = TaskSet(generate_split, to_row, key=lambda problem: problem.question)
