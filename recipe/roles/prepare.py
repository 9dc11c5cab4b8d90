"""Create tasks, tokenizer, model and warm start of the colleagues, like `examples.embedded.prepare` and with
its options:

    python -m recipe.roles.prepare --world colleagues --out outputs/embedded --seed 0

The demonstrations answer either part of a problem in half of the cases, with the same prompt, with that of A
and with that of B.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent_system.workflows.data import TaskSet
from examples.embedded import prepare
from examples.embedded.course import UNTIED, Course, Messages, World, conversation
from recipe.roles.team import ADD, COLLEAGUES, NAME, SUBTRACT, Colleague, ColleaguesOptions

OWNERS = ("Anna", "Ben", "Carla", "David", "Emma", "Felix", "Grace", "Hugo")
SOURCES = ("prepare.py", "team.py")


@dataclass(frozen=True)
class Problem:
    """Two quantities of which one grows and the other shrinks."""

    owner: str
    apples: int
    bought: int
    pears: int
    sold: int

    @property
    def question(self) -> str:
        return f"{self.owner} has {self.apples} {ADD} and buys {self.bought}, has {self.pears} {SUBTRACT} and sells {self.sold}."

    @property
    def replies(self) -> tuple[str, str]:
        """The right replies about both parts."""
        return (
            f"{ADD} {self.apples}+{self.bought}={self.apples + self.bought}",
            f"{SUBTRACT} {self.pears}-{self.sold}={self.pears - self.sold}",
        )


def generate(count: int, seed: str, exclude: Collection[str] = ()) -> list[Problem]:
    """Return `count` different problems whose questions are not in `exclude`."""
    rng = random.Random(seed)
    problems: dict[str, Problem] = {}
    while len(problems) < count:
        problem = Problem(
            rng.choice(OWNERS), rng.randint(2, 19), rng.randint(2, 9), rng.randint(11, 29), rng.randint(2, 9)
        )
        if problem.question not in exclude:
            problems[problem.question] = problem
    return list(problems.values())


def generate_split(num_train: int, num_test: int, seed: int) -> tuple[list[Problem], list[Problem]]:
    """Return (train, test) problems without a common question."""
    test = generate(num_test, f"test-{seed}")
    return generate(num_train, f"train-{seed}", {problem.question for problem in test}), test


def to_row(problem: Problem, index: int, split: str) -> dict[str, Any]:
    """Return the problem as a row of verl's schema."""
    answers = f"{ADD} {problem.apples + problem.bought}, {SUBTRACT} {problem.pears - problem.sold}"
    return {
        "data_source": f"verl_mas/{NAME}",
        "prompt": [{"role": "user", "content": problem.question}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": answers},
        "extra_info": {"split": split, "index": index},
    }


def make_demos(course: Course, seed: int, exclude: Collection[str] = ()) -> list[Messages]:
    """Return one conversation per problem: half of them without a name in the prompt, the others with that of
    a random colleague.
    """
    rng = random.Random(f"demos-{seed}")
    agents = [
        Colleague(agent_id, ColleaguesOptions(named)) for named in (False, True) for agent_id in COLLEAGUES
    ]
    problems = generate(course.count, f"demos-{seed}", exclude)
    return [
        conversation(rng.choice(agents), problem.question, rng.choice(problem.replies))
        for problem in problems
    ]


@dataclass(frozen=True)
class ColleaguesCourse(Course):
    """See `Course`; `source`, a hash of the files here, is part of the folder's name, so that a change of
    them creates a new one.
    """

    count: int = 14_400
    source: str = hashlib.sha256(
        b"".join(Path(__file__).with_name(name).read_bytes() for name in SOURCES)
    ).hexdigest()


WORLD = World(
    ColleaguesCourse(),
    TaskSet(generate_split, to_row, key=lambda problem: problem.question),
    make_demos,
    size=UNTIED,
)

if __name__ == "__main__":
    prepare.WORLDS[NAME] = WORLD
    prepare.main()
