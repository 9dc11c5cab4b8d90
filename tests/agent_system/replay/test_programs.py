"""Decisions of teams that are programs, and of teams with an agent behind an API."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

from agent_system import Task
from agent_system.gateway.session import Session
from agent_system.replay.client import OTHER_PROMPT
from tests.agent_system.gateway.conftest import build, say
from tests.agent_system.replay.conftest import Dice

TASK = Task("a", "2+2?", "sums", "4")
Run = Callable[..., Any]


def digits(prompt: str, dice: random.Random) -> str:
    return str(dice.choice((4, 5)))


async def drafts(task: Task, session: Session) -> str:
    """Two drafts at the same time, of which an Editor makes the answer."""
    answers = await asyncio.gather(*(say(session, "Writer") for _ in range(2)))
    texts = [answer.text for answer in answers]
    edited = await say(session, "Editor", [{"role": "user", "content": f"Which? {' '.join(texts)}"}])
    return edited.text


async def restless(task: Task, session: Session) -> str:
    """A program that asks another question each time."""
    noise = random.SystemRandom().random()
    first = await say(session, "Writer", [{"role": "user", "content": f"{noise}"}])
    return (await say(session, "Editor", [{"role": "user", "content": first.text}])).text


def of_program(tokenizer: Any, program: Any) -> Any:
    team, _ = build(tokenizer, program)
    for runtime in team.runtimes.values():
        object.__setattr__(runtime.binding, "client", Dice(tokenizer, digits))
    return team


async def test_decisions_of_a_deterministic_program_are_restored(audited: Run, tokenizer: Any) -> None:
    audit = await audited(of_program(tokenizer, drafts), [TASK], 6)
    assert audit.causes == [] and len(audit.outcomes) == 18
    effects = {
        name: [o for o in audit.outcomes if o.decision.row.agent_id == name] for name in ("Writer", "Editor")
    }
    assert len(effects["Writer"]) == 12 and len(effects["Editor"]) == 6
    assert all(len({*o.rewards[0]}) == 1 for o in effects["Editor"]), "nothing follows the Editor"
    assert any(len({r for arm in o.rewards for r in arm}) > 1 for o in effects["Editor"])


async def test_a_program_that_asks_something_else_is_not_restored(audited: Run, tokenizer: Any) -> None:
    audit = await audited(of_program(tokenizer, restless), [TASK], 3)
    assert audit.causes == [OTHER_PROMPT] * 6
