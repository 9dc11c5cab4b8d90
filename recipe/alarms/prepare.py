"""Create tasks, tokenizer, model and warm start of the Speaker and the Checker, like
`examples.embedded.prepare` and with its options:

    python -m recipe.alarms.prepare --world sounds --out outputs/embedded --seed 0

In the demonstrations the Speaker is right in half of the cases, the Checker in nine of ten.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent_system.agent import Entry
from agent_system.workflows.data import TaskSet
from examples.embedded import prepare
from examples.embedded.course import Course, Messages, World, conversation
from recipe.alarms.team import FILLER, NAME, NO, SPEAKER, YES, Checker, Speaker
from verl.models.tiny import TinyModelSize

SOUNDS = {
    "cat": "meow", "dog": "woof", "cow": "moo", "duck": "quack", "sheep": "baa", "frog": "croak",
    "lion": "roar", "owl": "hoot", "pig": "oink", "bee": "buzz",
}  # fmt: skip
SOURCES = ("prepare.py", "team.py")


@dataclass(frozen=True)
class Question:
    """What an animal says, of which there are some."""

    animal: str
    count: int

    @property
    def text(self) -> str:
        return f"{self.count} {self.animal}"


def generate_split(num_train: int, num_test: int, seed: int) -> tuple[list[Question], list[Question]]:
    """Return (train, test) questions without a common text."""
    questions = [Question(animal, count) for animal in SOUNDS for count in range(1, 500)]
    random.Random(f"tasks-{seed}").shuffle(questions)
    return questions[num_test : num_test + num_train], questions[:num_test]


def to_row(question: Question, index: int, split: str) -> dict[str, Any]:
    """Return the question as a row of verl's schema."""
    return {
        "data_source": f"verl_mas/{NAME}",
        "prompt": [{"role": "user", "content": question.text}],
        "ability": "lookup",
        "reward_model": {"style": "rule", "ground_truth": SOUNDS[question.animal]},
        "extra_info": {"split": split, "index": index},
    }


def make_demos(course: Course, seed: int, exclude: Collection[str] = ()) -> list[Messages]:
    """Return conversations of both agents in turn."""
    del exclude
    rng = random.Random(f"demos-{seed}")
    made: list[Messages] = []
    while len(made) < course.count:
        question = Question(rng.choice(list(SOUNDS)), rng.randint(1, 499))
        truth = SOUNDS[question.animal]
        said = truth if rng.random() < 0.5 else rng.choice(list(SOUNDS.values()))
        reply = FILLER * rng.choice((0, 0, 1, 2)) + f"{said}."
        made.append(conversation(Speaker(SPEAKER), question.text, reply))
        right = said == truth
        verdict = YES if right == (rng.random() < 0.92) else NO
        made.append(conversation(Checker("Checker"), question.text, f"{verdict}.", [Entry(SPEAKER, reply)]))
    return made[: course.count]


@dataclass(frozen=True)
class SoundsCourse(Course):
    """See `Course`; `source`, a hash of the files here, is part of the folder's name, so that a change of
    them creates a new one.
    """

    count: int = 8000
    source: str = hashlib.sha256(
        b"".join(Path(__file__).with_name(name).read_bytes() for name in SOURCES)
    ).hexdigest()


WORLD = World(
    SoundsCourse(),
    TaskSet(generate_split, to_row, key=lambda question: question.text),
    make_demos,
    size=TinyModelSize(hidden_size=64, intermediate_size=128, num_layers=2, tie_embeddings=False),
)

if __name__ == "__main__":
    prepare.WORLDS[NAME] = WORLD
    prepare.main()
