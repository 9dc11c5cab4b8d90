"""Decisions of teams that are programs, and of teams with an agent behind an API."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

from agent_system import Task
from agent_system.gateway.session import Session
from agent_system.replay.client import OTHER_PROMPT
from agent_system.rollout import AgentBinding, Collector, CollectorSettings, EnvFactory
from agent_system.rollout.endpoint import Endpoint
from agent_system.rollout.remote import RemoteBinding
from tests.agent_system.gateway.conftest import build, say
from tests.agent_system.replay.conftest import Dice
from tests.agent_system.replay.test_effects import FIRST, SECOND, BothCount, InTurn, Sayer, coin, team_of
from tests.chat_server import ChatServer, completion
from verl.protocol.generate import SamplingParams
from verl.trainer.config.api import ApiConfig

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


async def test_an_agent_behind_an_api_is_asked_after_the_decision_only(audited: Run, tokenizer: Any) -> None:
    server = ChatServer(lambda body: completion(str(body["seed"] % 2)))
    sampling = SamplingParams(20)
    bindings: dict[str, Any] = {
        FIRST: RemoteBinding(FIRST, "api:x", Endpoint(FIRST, ApiConfig(server.url, "x")), sampling, sampling),
        SECOND: AgentBinding(
            SECOND, SECOND, SECOND, Dice(tokenizer, coin), tokenizer, sampling, sampling, 500
        ),
    }
    agents = {name: Sayer(name) for name in bindings}
    team = Collector(InTurn(), agents, EnvFactory(BothCount), bindings, CollectorSettings())
    try:
        audit = await audited(team, [TASK], 6)
    finally:
        server.stop()
    assert audit.causes == [] and len(server.bodies) == 6, "the episodes, but not their replays"
    assert {o.decision.row.agent_id for o in audit.outcomes} == {SECOND}


async def test_episodes_that_share_replies_are_restored_one_by_one(audited: Run, tokenizer: Any) -> None:
    team = team_of(tokenizer, BothCount, repeat_calls={FIRST: 3})
    audit = await audited(team, [TASK], 6)
    assert audit.causes == []
    # every third reply of the first agent is new, and trained for all three
    decided = [o.decision.row.agent_id for o in audit.outcomes]
    assert (decided.count(FIRST), decided.count(SECOND)) == (2, 6)
