"""Create tasks, model and warm start of the shops for one published form of tool calls, like
`examples.embedded.prepare` and with its options:

    python -m recipe.tool_forms.prepare --world shops --course llama3_1 --out outputs/embedded --seed 0

The model is tiny and random; its vocabulary and chat template are those of a published model, from pinned
packages. The demonstrations are conversations with `tool_calls`, which the template itself renders.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Collection
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

from agent_system.workflows.data import TaskSet
from examples.embedded import prepare
from examples.embedded.course import Course, World, conversation
from recipe.tool_forms import warm_start
from recipe.tool_forms.team import (
    CASHIER,
    CLERK,
    COSTS,
    ITEMS,
    NAME,
    SHOPS,
    Cashier,
    Clerk,
    bill,
    price,
    question,
)
from tests.templates import published

SOURCES = ("prepare.py", "team.py", "warm_start.py")
# Mistral's templates ask for ids of nine characters.
CALL_ID = "call00001"


@dataclass(frozen=True)
class Form:
    """A published vocabulary and a published template.

    Attributes:
        vocabulary: of `tests.templates.published.vocabulary`.
        template: its key in `tests.templates.published.templates`.
    """

    vocabulary: str
    template: str


FORMS = {
    "llama3_1": Form("llama3_1", "llama.cpp/meta-llama-Llama-3.1-8B-Instruct"),
    "mistral": Form("mistral_v3", "xinference/mistral-instruct-v0.3"),
    "qwen3_coder": Form("qwen3", "llama.cpp/Qwen3-Coder"),
}


@dataclass(frozen=True)
class Habits:
    """Shares of careful replies.

    Attributes:
        call: share of the Clerk's answers for which it calls the tool; the others are guessed.
        write: share of the Cashier's bills; else it says that it does not know.
    """

    call: float
    write: float


@dataclass(frozen=True)
class ShopsCourse(Course):
    """See `Course`; `source`, a hash of the files here, is part of the folder's name.

    Attributes:
        form: a key of `FORMS`.
    """

    count: int = 25_600
    batch_size: int = 16
    form: str = "llama3_1"
    habits: Habits = Habits(call=0.35, write=0.5)
    careful: Habits = Habits(call=1.0, write=1.0)
    source: str = hashlib.sha256(
        b"".join(Path(__file__).with_name(name).read_bytes() for name in SOURCES)
    ).hexdigest()


def make_demos(course: ShopsCourse, seed: int, exclude: Collection[str] = ()) -> list[Any]:
    """Return one conversation per question, of one of the two agents; none about a question in `exclude`."""
    rng = random.Random(f"demos-{seed}")
    pairs = [pair for pair in product(ITEMS, SHOPS) if question(*pair) not in exclude]
    return course.conversations(
        rng,
        (rng.choice(pairs) for _ in range(course.count)),
        lambda pair, habits: [_demo(rng, *pair, habits)],
    )


def _demo(rng: random.Random, item: str, shop: str, habits: Habits) -> list[Any]:
    asked, cost = question(item, shop), str(rng.choice(COSTS))
    if rng.random() < 0.4:
        said = bill(item, shop, cost) if rng.random() < habits.write else "I do not know"
        return conversation(_agent(CASHIER), asked, said, cost=cost)
    if rng.random() >= habits.call:
        return conversation(_agent(CLERK), asked, f"It is {cost}")
    return [*called(item, shop, cost), {"role": "assistant", "content": f"It is {cost}"}]


def called(item: str, shop: str, cost: str) -> list[Any]:
    """Return the question to the Clerk, its call and the result."""
    *prompt, _ = conversation(_agent(CLERK), question(item, shop), "")
    function = {"name": price.__name__, "arguments": {"item": item, "shop": shop}}
    call = {"id": CALL_ID, "type": "function", "function": function}
    return [
        *prompt,
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": CALL_ID, "name": price.__name__, "content": cost},
    ]


def tools(demo: list[Any]) -> list[Any]:
    """Return the schemas of the Clerk's tools for its conversations, else nothing."""
    return _agent(CLERK).schemas if demo[0]["content"].endswith("?") else []


@cache
def _agent(agent_id: str) -> Any:
    return {CLERK: Clerk, CASHIER: Cashier}[agent_id](agent_id)


def tokenizer(course: ShopsCourse) -> Any:
    """Return the published vocabulary of a course with the template of its form."""
    form = FORMS[course.form]
    package, _, name = form.template.partition("/")
    made = published.vocabulary(form.vocabulary)
    made.chat_template = published.templates((package,))[f"{package}/{name}"]
    return made


def _split(num_train: int, num_test: int, seed: int) -> tuple[list[Any], list[Any]]:
    """Return at most three quarters of the pairs of item and shop, and at most a quarter."""
    pairs = random.Random(f"split-{seed}").sample([*product(ITEMS, SHOPS)], len(ITEMS) * len(SHOPS))
    num_test = min(num_test, len(pairs) // 4)
    return pairs[num_test:][:num_train], pairs[:num_test]


def _row(pair: tuple[str, str], index: int, split: str) -> dict[str, Any]:
    return {
        "data_source": f"verl_mas/{NAME}",
        "prompt": [{"role": "user", "content": question(*pair)}],
        "ability": "tools",
        "reward_model": {"style": "rule", "ground_truth": bill(*pair, str(price(*pair)))},
        "extra_info": {"split": split, "index": index},
    }


WORLD = World(
    ShopsCourse(),
    TaskSet(_split, _row, key=lambda pair: question(*pair)),
    make_demos,
    courses={form: ShopsCourse(form=form) for form in FORMS},
    tools=tools,
    tokenizer=tokenizer,
    warm_start=warm_start.run,
)

if __name__ == "__main__":
    prepare.WORLDS[NAME] = WORLD
    prepare.main()
