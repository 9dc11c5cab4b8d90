"""Small facts generated from a seed, and questions about them that need one search or two.

Books have an author and a translator, people a birthplace and a home; every name consists of two words:

    The author of Ada Elm is Gus Oak.              What is the birthplace of the author of Ada Elm?
    The birthplace of Gus Oak is Kim Bay.          Kim Bay

Names of training, test and demonstrations are drawn from three disjoint parts of all pairs of words, so the
names of test questions do not occur elsewhere. Rows follow verl's schema.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from agent_system.errors import AgentSystemError
from agent_system.workflows.data import TaskSet

DATA_SOURCE = "verl_mas/small_facts"
OF_BOOK = ("author", "translator")
OF_PERSON = ("birthplace", "home")
_FIRST = (
    "Abe Ada Amy Ann Art Bea Ben Bob Cal Cyd Dan Deb Don Dov Eli Eva Eve Fay Fox Gia Gil Gus Hal Hob Ian Ida "
    "Ira Jan Jed Jim Joy Kai Ken Kim Lea Lee Liz Lou Mae Max Meg Nat Ned Nia Ola Ora Pat Pip Ray Rex Sam Sue "
    "Tia Tom Uma Val Wes Xia Yan Zoe"
)
_LAST = (
    "Arc Ash Bay Bee Bud Cap Cob Cox Cup Dam Den Dew Egg Elk Elm Fan Fen Fig Fir Gap Gem Gum Hay Hen Hut Ice "
    "Ink Ivy Jam Jar Jet Keg Key Kit Lab Lid Log Map Mat Mud Net Nut Oak Oil Owl Pan Pea Quay Rug Rye Sea "
    "Sky Tar Tin Urn Vat Wax Web Yew Zip"
)
# Demonstrations have most of the pairs: with few, the model would learn which words go together, and refuse
# the pairs of other parts.
PARTS = {"test": (0.0, 0.05), "train": (0.05, 0.25), "demos": (0.25, 1.0)}
QUESTIONS_OF_A_BOOK = len(OF_BOOK) * len(OF_PERSON)


@dataclass(frozen=True)
class Difficulty:
    """Difficulty of generated questions.

    Attributes:
        two_hop: share of questions that need two searches.
    """

    two_hop: float = 0.5


@dataclass(frozen=True)
class Fact:
    """The `relation` of `subject` is `value`."""

    relation: str
    subject: str
    value: str

    def __str__(self) -> str:
        return f"The {self.relation} of {self.subject} is {self.value}."

    @property
    def query(self) -> str:
        """A query that finds the fact."""
        return f"{self.relation} of {self.subject}"


@dataclass(frozen=True)
class Question:
    """A question and the facts that answer it, in the order of the searches.

    Attributes:
        hops: one fact, or two, the second of which is about the value of the first.
    """

    hops: tuple[Fact, ...]

    @property
    def text(self) -> str:
        """The question in words."""
        relations = " of the ".join(fact.relation for fact in reversed(self.hops))
        return f"What is the {relations} of {self.hops[0].subject}?"

    @property
    def answer(self) -> str:
        return self.hops[-1].value


@dataclass(frozen=True)
class Facts:
    """A small world.

    Attributes:
        books: facts of every book, in the order of `OF_BOOK`.
        people: facts of every person by name, in the order of `OF_PERSON`.
    """

    books: tuple[tuple[Fact, ...], ...]
    people: dict[str, tuple[Fact, ...]]

    @property
    def all(self) -> list[Fact]:
        """Every fact."""
        return [fact for facts in (*self.books, *self.people.values()) for fact in facts]

    @property
    def one_hop(self) -> list[Question]:
        """Every question that needs one fact."""
        return [Question((fact,)) for fact in self.all]

    @property
    def two_hop(self) -> list[Question]:
        """Every question about a person related to a book."""
        return [
            Question((first, second))
            for facts in self.books
            for first in facts
            for second in self.people[first.value]
        ]


def names_of(part: str, seed: int) -> list[str]:
    """Return the names of one of `PARTS`, shuffled with the seed."""
    names = [f"{first} {last}" for first, last in product(_FIRST.split(), _LAST.split())]
    random.Random(f"names-{seed}").shuffle(names)
    start, end = PARTS[part]
    return names[int(start * len(names)) : int(end * len(names))]


def make_facts(rng: random.Random, names: Sequence[str], num_books: int) -> Facts:
    """Draw a world of `num_books` books, as many people and half as many towns.

    Raises:
        AgentSystemError: there are too few names.
    """
    needed = 2 * num_books + num_books // 2 + 1
    if needed > len(names):
        raise AgentSystemError(
            f"{num_books} books need {needed} names, found {len(names)}; ask for fewer questions"
        )
    drawn = rng.sample(list(names), needed)
    titles, people, towns = drawn[:num_books], drawn[num_books : 2 * num_books], drawn[2 * num_books :]

    def facts(relations: Sequence[str], subject: str, values: Sequence[str]) -> tuple[Fact, ...]:
        return tuple(Fact(relation, subject, rng.choice(values)) for relation in relations)

    return Facts(
        tuple(facts(OF_BOOK, t, people) for t in titles), {p: facts(OF_PERSON, p, towns) for p in people}
    )


def make_part(part: str, count: int, seed: int, two_hop: float) -> tuple[Facts, list[Question]]:
    """Return a world with the names of a part and `count` distinct questions about it, a share `two_hop` of
    them with two hops.
    """
    rng = random.Random(f"facts-{part}-{seed}")
    num_two = round(count * two_hop)
    num_books = max(2, -(-num_two // QUESTIONS_OF_A_BOOK), -(-(count - num_two) // QUESTIONS_OF_A_BOOK))
    facts = make_facts(rng, names_of(part, seed), num_books)
    questions = rng.sample(facts.two_hop, num_two) + rng.sample(facts.one_hop, count - num_two)
    rng.shuffle(questions)
    return facts, questions


def generate_split(
    num_train: int, num_test: int, seed: int, two_hop: float = 0.5
) -> tuple[list[Fact], list[Question], list[Question]]:
    """Return (corpus, training questions, test questions); the corpus holds the facts of both in random
    order.
    """
    train, train_questions = make_part("train", num_train, seed, two_hop)
    test, test_questions = make_part("test", num_test, seed, two_hop)
    corpus = train.all + test.all
    random.Random(f"corpus-{seed}").shuffle(corpus)
    return corpus, train_questions, test_questions


def to_document(fact: Fact, number: int) -> dict[str, str]:
    """Return the fact as a line of a corpus."""
    return {"id": str(number), "title": fact.subject, "text": str(fact)}


def to_row(question: Question, index: int, split: str) -> dict[str, Any]:
    """Return the question as a row of verl's schema, with the facts that answer it in `extra_info`."""
    return {
        "data_source": DATA_SOURCE,
        "prompt": [{"role": "user", "content": question.text}],
        "ability": "search",
        "reward_model": {"style": "rule", "ground_truth": question.answer},
        "extra_info": {
            "split": split,
            "index": index,
            "hops": len(question.hops),
            "queries": [fact.query for fact in question.hops],
            "facts": [str(fact) for fact in question.hops],
        },
    }


def _questions(
    num_train: int, num_test: int, seed: int, difficulty: Difficulty
) -> tuple[list[Question], list[Question]]:
    return generate_split(num_train, num_test, seed, difficulty.two_hop)[1:]


def _corpus(num_train: int, num_test: int, seed: int, difficulty: Difficulty) -> dict[str, str]:
    facts = generate_split(num_train, num_test, seed, difficulty.two_hop)[0]
    return {
        "corpus.jsonl": "".join(
            json.dumps(to_document(fact, number)) + "\n" for number, fact in enumerate(facts)
        )
    }


TASKS = TaskSet(_questions, to_row, key=lambda question: question.text, difficulty=Difficulty, files=_corpus)
