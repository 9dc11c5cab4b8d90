"""Kept replies: equal requests go to an engine once, also at the same time and after a restart."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from agent_system.errors import AgentSystemError
from agent_system.evolve.ledger import LedgerError, SearchLedger
from agent_system.evolve.replay import ReplayClient, ReplayMemory
from verl.protocol.generate import GenerateRequest, Generation, RolloutError, SamplingParams


class Engine:
    """Replies with the seed and counts requests."""

    def __init__(self) -> None:
        self.count = 0
        self.version = 0
        self.error: Exception | None = None

    async def generate(self, request: GenerateRequest) -> list[Generation]:
        self.count += 1
        await asyncio.sleep(0)
        if self.error is not None:
            raise self.error
        ids = (request.seed, self.count)
        return [Generation(ids, (-0.1, -1 / 3), "stop", version=self.version)] * request.n


def request(seed: int, **changes: object) -> GenerateRequest:
    return GenerateRequest((1, 2), SamplingParams(8), seed=seed, **changes)  # type: ignore[arg-type]


async def test_an_equal_request_is_made_once_whatever_its_name() -> None:
    engine, memory = Engine(), ReplayMemory()
    client = ReplayClient(engine, "wg", memory)
    first = await asyncio.gather(*(client.generate(request(1, request_id=str(i))) for i in range(5)))
    assert engine.count == 1 and first.count(first[0]) == 5
    for other in (request(2), request(1, n=2), request(1, adapter="a")):
        await client.generate(other)
    await ReplayClient(engine, "another model", memory).generate(request(1))
    assert engine.count == 5
    assert (memory.replies, memory.tokens) == (6, 12)
    memory.commit()
    assert await client.generate(request(1)) == first[0]
    assert (memory.replies, memory.tokens) == (0, 0)


async def test_kept_replies_come_back_to_the_bit_up_to_the_size_that_was_committed(tmp_path: Path) -> None:
    path = tmp_path / "replies.jsonl"
    memory, engine = ReplayMemory(path), Engine()
    client = ReplayClient(engine, "wg", memory)
    replies = [await client.generate(request(seed)) for seed in (3, 1)]
    size = memory.commit()
    await client.generate(request(9))
    assert memory.commit() > size
    again = ReplayMemory(path)
    again.load(size)
    assert path.stat().st_size == size
    client = ReplayClient(engine, "wg", again)
    assert [await client.generate(request(seed)) for seed in (3, 1)] == replies
    assert engine.count == 3
    # the line that counts this one was not written: it is counted now, and not paid for again
    assert (again.replies, again.tokens) == (0, 0)
    await client.generate(request(9))
    assert engine.count == 3 and (again.replies, again.tokens) == (1, 2)
    assert again.commit() > size


@pytest.mark.parametrize("torn", [0, 1, 40])
async def test_replies_that_arrived_before_a_kill_are_not_paid_for_again(tmp_path: Path, torn: int) -> None:
    path = tmp_path / "replies.jsonl"
    memory, engine = ReplayMemory(path), Engine()
    client = ReplayClient(engine, "wg", memory)
    await client.generate(request(1))
    size = memory.commit()
    replies = [await client.generate(request(seed)) for seed in (2, 3, 4)]
    # killed here, perhaps while the last one was written
    arrived = tmp_path / "replies.new.jsonl"
    content = arrived.read_bytes()
    assert content.count(b"\n") == 3
    arrived.write_bytes(content[: len(content) - torn])
    again = ReplayMemory(path)
    again.load(size)
    client = ReplayClient(engine, "wg", again)
    assert [await client.generate(request(seed)) for seed in (2, 3)] == replies[:2]
    last = await client.generate(request(4))
    assert engine.count == 4 + bool(torn) and (last == replies[2]) != bool(torn)
    assert (again.replies, again.tokens) == (3, 6)
    third = ReplayMemory(path)
    third.load(size)
    client = ReplayClient(engine, "wg", third)
    assert await client.generate(request(4)) == last, "killed twice in one batch"
    assert engine.count == 4 + bool(torn)
    written = again.commit()
    await ReplayClient(engine, "wg", again).generate(request(5))
    assert arrived.read_bytes().count(b"\n") == 1, "a new batch begins the file anew"
    whole = ReplayMemory(path)
    whole.load(written)
    assert len(whole._kept) == 4


async def test_the_oldest_replies_are_forgotten_in_an_order_that_arrival_does_not_change(
    tmp_path: Path,
) -> None:
    files = []
    for name, seeds in (("a", (1, 2, 3, 4)), ("b", (4, 2, 1, 3))):
        memory = ReplayMemory(tmp_path / name, most=2)
        client = ReplayClient(Engine(), "wg", memory)
        await asyncio.gather(*(client.generate(request(seed)) for seed in seeds))
        memory.commit()
        keys = sorted(memory._kept)
        assert len(keys) == 2
        files.append(keys)
    assert files[0] == files[1]


async def test_replies_of_other_weights_are_an_error() -> None:
    engine = Engine()
    client = ReplayClient(engine, "wg", ReplayMemory())
    await client.generate(request(1))
    engine.version = 1
    with pytest.raises(AgentSystemError, match="weights changed during the search"):
        await client.generate(request(2))


async def test_replies_of_other_weights_than_those_before_a_restart_are_an_error(tmp_path: Path) -> None:
    engine, memory = Engine(), ReplayMemory(tmp_path / "replies.jsonl")
    await ReplayClient(engine, "wg", memory).generate(request(1))
    again = ReplayMemory(tmp_path / "replies.jsonl")
    again.load(memory.commit())
    engine.version = 1
    with pytest.raises(AgentSystemError, match=r"weights changed during the search \(versions \[0, 1\]\)"):
        await ReplayClient(engine, "wg", again).generate(request(2))


@pytest.mark.parametrize("how", ["deleted", "torn", "zeros"])
async def test_replies_that_are_gone_are_named_and_nothing_is_written(tmp_path: Path, how: str) -> None:
    path = tmp_path / "replies.jsonl"
    memory = ReplayMemory(path)
    ledger = SearchLedger(tmp_path, {}, memory)

    async def work() -> dict[str, Any]:
        await ReplayClient(Engine(), "wg", memory).generate(request(1))
        return {}

    await ledger.event({"event": "play"}, work)
    ledger.close()
    content = path.read_bytes()
    said = rf"replies\.jsonl: has [0-9]+ of the {len(content)} bytes .*restore the file, or set trainer\."
    if how == "deleted":
        path.unlink()
    elif how == "torn":
        path.write_bytes(content[:20])
    else:
        path.write_bytes(bytes(len(content)))
        said = "line 1 has no replies; restore the file"
    before = [file.read_bytes() for file in sorted(tmp_path.iterdir())]
    with pytest.raises(LedgerError, match=said) as caught:
        SearchLedger(tmp_path, {}, ReplayMemory(path))
    assert "\n" not in str(caught.value)
    assert [file.read_bytes() for file in sorted(tmp_path.iterdir())] == before
    path.write_bytes(content)
    SearchLedger(tmp_path, {}, ReplayMemory(path)).close()


async def test_a_failed_request_is_not_kept() -> None:
    engine, memory = Engine(), ReplayMemory()
    client = ReplayClient(engine, "wg", memory)
    engine.error = RolloutError("too long")
    results = await asyncio.gather(*(client.generate(request(1)) for _ in range(2)), return_exceptions=True)
    assert [type(r) for r in results] == [RolloutError] * 2
    engine.error = None
    assert len(await client.generate(request(1))) == 1
    assert engine.count == 2


@pytest.mark.parametrize("line", [b'[["k"], []]', b"[" * 100_000, b"{}", b'["k", [1]]'])
def test_a_line_of_another_form_is_named(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "replies.jsonl"
    path.write_bytes(line + b"\n")
    with pytest.raises(AgentSystemError, match="line 1 has no replies; restore the file"):
        ReplayMemory(path).load(len(line) + 1)
    assert path.read_bytes() == line + b"\n"
