"""Kept replies of servers: an equal request is paid for once, also after a restart."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent_system.evolve.replay import ReplayMemory
from agent_system.evolve.replay_api import ReplayEndpoint
from agent_system.rollout.endpoint import Endpoint, EndpointError
from agent_system.rollout.prompt import Prompt
from agent_system.rollout.remote import RemoteBinding
from tests.chat_server import ChatServer, completion
from verl.protocol.generate import SamplingParams
from verl.trainer.config.api import ApiConfig

SAMPLING = SamplingParams(8, temperature=0.7)


@pytest.fixture
def server() -> Iterator[ChatServer]:
    server = ChatServer()
    server.answer = lambda body: completion(f"reply {len(server.bodies)} to {body['seed']}")
    yield server
    server.stop()


def binding(server: ChatServer, memory: ReplayMemory, **changes: Any) -> RemoteBinding:
    config = ApiConfig(base_url=server.url, model="judge", max_retries=0, **changes)
    return RemoteBinding(
        "Solver", "api", ReplayEndpoint(Endpoint("Solver", config), memory), SAMPLING, SAMPLING
    )


async def asked(of: RemoteBinding, text: str, seed: int, n: int = 1) -> list[str]:
    prompt = Prompt(text, (), messages=({"role": "user", "content": text},))
    try:
        return [of.text_of(reply) for reply in await of.replies(prompt, SAMPLING, n, seed, "")]
    finally:
        await of.endpoint.close()


async def test_a_server_is_paid_once_for_a_request(server: ChatServer, tmp_path: Path) -> None:
    memory = ReplayMemory(tmp_path / "replies.jsonl")
    solver = binding(server, memory)
    first = await asked(solver, "red kiwi code", 1)
    assert await asked(solver, "red kiwi code", 1) == first
    both = await asked(solver, "red kiwi code", 1, n=2)
    assert both[0] == first[0] and len(server.bodies) == 2, "each of n replies has its seed"
    await asked(solver, "red kiwi shelf", 1)
    await asked(binding(server, memory, extra_body={"top_k": 5}), "red kiwi code", 1)
    assert len(server.bodies) == 4
    assert (memory.replies, memory.tokens) == (4, 12), "tokens are those that the server counts"
    size = memory.commit()
    again = ReplayMemory(tmp_path / "replies.jsonl")
    again.load(size)
    assert await asked(binding(server, again), "red kiwi code", 1) == first
    assert len(server.bodies) == 4 and (again.replies, again.tokens) == (0, 0)
    assert server.url not in (tmp_path / "replies.jsonl").read_text()


async def test_replies_that_arrived_before_a_kill_are_not_paid_for_again(
    server: ChatServer, tmp_path: Path
) -> None:
    memory = ReplayMemory(tmp_path / "replies.jsonl")
    texts = await asked(binding(server, memory), "red kiwi code", 1, n=3)
    again = ReplayMemory(tmp_path / "replies.jsonl")
    again.load(0)
    assert await asked(binding(server, again), "red kiwi code", 1, n=3) == texts
    assert len(server.bodies) == 3 and (again.replies, again.tokens) == (3, 9)


async def test_equal_requests_at_the_same_time_are_one(server: ChatServer) -> None:
    of = binding(server, ReplayMemory())
    prompt = Prompt("x", (), messages=({"role": "user", "content": "x"},))
    replies = await asyncio.gather(*(of.replies(prompt, SAMPLING, 1, 7, str(i)) for i in range(5)))
    await of.endpoint.close()
    assert len(server.bodies) == 1 and len({of.text_of(r[0]) for r in replies}) == 1


async def test_a_failed_request_is_not_kept(server: ChatServer) -> None:
    memory = ReplayMemory()
    answer = server.answer
    server.answer = lambda body: 500
    with pytest.raises(EndpointError, match="HTTP status 500"):
        await asked(binding(server, memory), "x", 1)
    server.answer = answer
    assert await asked(binding(server, memory), "x", 1) == ["reply 2 to 1"]
    assert memory.replies == 1
