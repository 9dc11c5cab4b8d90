"""Create tasks, tokenizer, model and warm start of the library, like `examples.embedded.prepare` and with its
options:

    python -m recipe.delegation.prepare --world library --out outputs/embedded --seed 0

The demonstrations show every role at work, but not always rightly: see `RIGHT`.
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
from recipe.delegation.team import (
    COUNTER,
    FINDER,
    NAME,
    NO,
    PLANNER,
    READER,
    YES,
    Counter,
    Finder,
    Planner,
    Reader,
)

WORD = "gold"  # that is looked for
OTHERS = ("red", "blue", "green", "black", "white", "pink", "grey", "brown", "olive")
CHAPTERS = (3, 6)
LENGTH = 7  # words of a chapter
FITS = 2  # chapters that a prompt holds
# Share of right replies in the demonstrations of each role.
RIGHT = {PLANNER: 0.6, FINDER: 0.8, COUNTER: 0.8, READER: 0.6}
SOURCES = ("prepare.py", "team.py")


@dataclass(frozen=True)
class Document:
    """A document and the word that is looked for."""

    word: str
    chapters: tuple[str, ...]

    @property
    def question(self) -> str:
        return f"{self.word} {len(self.chapters)}"

    @property
    def answers(self) -> list[str]:
        """What a Finder should say of each chapter."""
        return [YES if self.word in chapter.split() else NO for chapter in self.chapters]


def generate(count: int, seed: str, exclude: Collection[Any] = ()) -> list[Document]:
    """Return `count` different documents that are not in `exclude`; half of the chapters have the
    word.
    """
    rng = random.Random(seed)
    documents: dict[Document, None] = {}
    while len(documents) < count:
        chapters = []
        for _ in range(rng.randint(*CHAPTERS)):
            words = rng.sample(OTHERS, LENGTH)
            if rng.random() < 0.5:
                words[rng.randrange(LENGTH)] = WORD
            chapters.append(" ".join(words))
        document = Document(WORD, tuple(chapters))
        if document not in exclude:
            documents[document] = None
    return list(documents)


def generate_split(num_train: int, num_test: int, seed: int) -> tuple[list[Document], list[Document]]:
    """Return (train, test) documents without a common one."""
    test = generate(num_test, f"test-{seed}")
    return generate(num_train, f"train-{seed}", frozenset(test)), test


def to_row(document: Document, index: int, split: str) -> dict[str, Any]:
    """Return the document as a row of verl's schema; its chapters are in `extra_info`, for the workflow."""
    return {
        "data_source": f"verl_mas/{NAME}",
        "prompt": [{"role": "user", "content": document.question}],
        "ability": "reading",
        "reward_model": {"style": "rule", "ground_truth": str(document.answers.count(YES))},
        "extra_info": {"split": split, "index": index, "chapters": list(document.chapters)},
    }


def demo(document: Document, role: str, rng: random.Random) -> Messages:
    """Return a conversation of a role about a document, right as often as `RIGHT` says."""
    right = rng.random() < RIGHT[role]
    if role == PLANNER:
        numbers = list(range(1, len(document.chapters) + 1))
        if not right:
            numbers.remove(rng.choice(numbers))
        return conversation(
            Planner(PLANNER), document.question, "\n".join(f"{document.word} {n}" for n in numbers)
        )
    if role == FINDER:
        chapter, answer = rng.choice(list(zip(document.chapters, document.answers, strict=True)))
        reply = answer if right else {YES: NO, NO: YES}[answer]
        return conversation(Finder(FINDER), document.question, reply, task=document.word, chapter=chapter)
    if role == COUNTER:
        findings = document.answers[: rng.randint(2, len(document.answers))]
        return conversation(
            Counter(COUNTER),
            document.question,
            _number(findings.count(YES), right, rng),
            findings=" ".join(findings),
        )
    entries = [Entry("chapter", chapter) for chapter in document.chapters[-FITS:]]
    return conversation(
        Reader(READER), document.question, _number(document.answers.count(YES), right, rng), entries
    )


def _number(count: int, right: bool, rng: random.Random) -> str:
    return str(count if right else abs(count + rng.choice((-1, 1))))


def make_demos(course: Course, seed: int, exclude: Collection[Any] = ()) -> list[Messages]:
    """Return one conversation per document, of a random role; two in five are a Finder's."""
    rng = random.Random(f"demos-{seed}")
    roles = (PLANNER, FINDER, FINDER, COUNTER, READER)
    documents = generate(course.count, f"demos-{seed}", exclude)
    return [demo(document, rng.choice(roles), rng) for document in documents]


@dataclass(frozen=True)
class LibraryCourse(Course):
    """See `Course`; `source`, a hash of the files here, is part of the folder's name, so that a
    change of them creates a new one.
    """

    count: int = 19_200
    source: str = hashlib.sha256(
        b"".join(Path(__file__).with_name(name).read_bytes() for name in SOURCES)
    ).hexdigest()


WORLD = World(LibraryCourse(), TaskSet(generate_split, to_row, key=lambda document: document), make_demos)

if __name__ == "__main__":
    prepare.WORLDS[NAME] = WORLD
    prepare.main()
