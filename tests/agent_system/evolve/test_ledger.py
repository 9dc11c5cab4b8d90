"""The ledger: events come back in their order; a torn line is dropped, other searches are refused."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from agent_system.evolve.ledger import LedgerError, SearchLedger
from agent_system.evolve.replay import ReplayMemory


def opened(folder: Path, header: Mapping[str, Any] = {"seed": 1, "keys": {"a": 1}}) -> SearchLedger:
    return SearchLedger(folder, header, ReplayMemory())


async def filled(folder: Path, count: int = 3) -> bytes:
    """The ledger's bytes after events that count."""
    ledger = opened(folder)
    for number in range(count):

        async def work(number: int = number) -> Mapping[str, Any]:
            return {"result": number / 3}

        line = await ledger.event({"event": "play", "number": number}, work)
        assert line["result"] == number / 3
    ledger.close()
    return (folder / "ledger.jsonl").read_bytes()


async def forbidden() -> Mapping[str, Any]:
    raise AssertionError("it is paid for")


async def test_events_are_not_paid_for_twice(tmp_path: Path) -> None:
    content = await filled(tmp_path)
    ledger = opened(tmp_path)
    assert ledger.resumed == 3
    lines = [await ledger.event({"event": "play", "number": n}, forbidden) for n in range(3)]
    ledger.close()
    assert [line["result"] for line in lines] == [0, 1 / 3, 2 / 3]
    assert (tmp_path / "ledger.jsonl").read_bytes() == content


async def test_a_ledger_that_was_cut_anywhere_becomes_the_same_again(tmp_path: Path) -> None:
    content = await filled(tmp_path / "whole")
    for size in range(0, len(content), 7):
        folder = tmp_path / str(size)
        folder.mkdir()
        (folder / "ledger.jsonl").write_bytes(content[:size])
        assert await filled(folder) == content


async def test_a_ledger_of_other_inputs_is_refused_with_the_first_difference(tmp_path: Path) -> None:
    await filled(tmp_path)
    with pytest.raises(LedgerError, match=r"has keys\.a=1, this one 2; go on with the same inputs"):
        opened(tmp_path, {"seed": 1, "keys": {"a": 2}})
    ledger = opened(tmp_path)
    with pytest.raises(LedgerError, match="it is of another version"):
        await ledger.event({"event": "play", "number": 7}, forbidden)
    ledger.close()


async def test_two_processes_do_not_write_one_search(tmp_path: Path) -> None:
    ledger = opened(tmp_path)
    with pytest.raises(LedgerError, match="another process writes"):
        opened(tmp_path)
    ledger.close()
    opened(tmp_path).close()


async def test_a_line_in_the_middle_that_is_no_json_is_an_error(tmp_path: Path) -> None:
    content = await filled(tmp_path)
    (tmp_path / "ledger.jsonl").write_bytes(content.replace(b'{"event":"play","number":0', b"garbage", 1))
    with pytest.raises(LedgerError, match=r"ledger\.jsonl: line 2 is no JSON"):
        opened(tmp_path)


async def test_lines_have_no_numbers_that_json_has_not(tmp_path: Path) -> None:
    ledger = opened(tmp_path)

    async def work() -> Mapping[str, Any]:
        return {"result": float("nan")}

    with pytest.raises(ValueError, match="Out of range"):
        await ledger.event({"event": "play"}, work)
    ledger.close()
