"""The controller does the same work for a unit however large the run is, counted and not timed; the
benchmark of its growth ends with its one JSON line.
"""

from __future__ import annotations

import json
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

from benchmarks import scale
from tests.house.source import ROOT
from verl.protocol import DataProto
from verl.trainer.config import AlgorithmConfig
from verl.trainer.ppo.batching import split_batch_by_policies
from verl.trainer.ppo.collect.dynamic_sampling import _dropped_shares
from verl.trainer.ppo.metric_utils import compute_agent_metrics
from verl.utils.dataset import TaskLoader

SCRIPT = ROOT / "benchmarks" / "scale.py"
TINY = {
    "episodes": 80, "turns": 20, "agents": 10, "calls": 40, "tasks": 40, "rows": 320, "file-rows": 160,
    "groups": 2, "rounds": 1,
}  # fmt: skip


def test_the_last_line_is_the_growth_of_the_worst_sweep(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    sizes = [word for name, size in TINY.items() for word in (f"--{name}", str(size))]
    plot = tmp_path / "scale.svg"
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), *sizes, "--plot", str(plot)])
    with caplog.at_level("INFO"):
        runpy.run_path(str(SCRIPT), run_name="__main__")
    result = json.loads(caplog.messages[-1])
    assert list(result) == ["episodes_in_flight", "cpu_ms_per_call", "linear", "mib", "growth", "spread"]
    assert result["episodes_in_flight"] == TINY["episodes"], "all are played at once"
    assert result["cpu_ms_per_call"] > 0 and result["mib"] >= 0
    assert result["linear"] == max(result["growth"].values())
    assert result["growth"].keys() == result["spread"].keys() >= {"episodes", "tasks", "credit"}
    assert plot.read_text().count("<polyline") == len(result["growth"])


def operations(work: Callable[[], Any]) -> int:
    """The bytecode instructions of Python code that a call executes in this thread."""
    count = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


@pytest.mark.parametrize(
    ("case", "small", "large"), [(scale.in_turn, 8, 80), (scale.together, 4, 40)], ids=["turns", "agents"]
)
def test_a_call_takes_as_many_instructions_in_a_larger_run(
    case: Callable[[int, int], scale.Play], small: int, large: int
) -> None:
    counts = {}
    for size in (small, large):
        play = case(size, 80)
        play.cost()  # what is made once
        counts[size] = operations(play.cost)
    assert counts[large] < 1.2 * counts[small], counts


class Counted(str):
    """A text that counts its comparisons."""

    __hash__ = str.__hash__
    comparisons = 0

    def __eq__(self, other: object) -> bool:
        Counted.comparisons += 1
        return str.__eq__(self, other)

    def __ne__(self, other: object) -> bool:
        Counted.comparisons += 1
        return str.__ne__(self, other)


def batch_of(agents: int) -> DataProto:
    """640 rows of this many agents, with a policy each."""
    rows = scale.Rows(agents=agents)
    _, batch = rows.batch(rows.episodes(640))
    batch.batch["advantages"] = batch.batch["response_mask"].float()
    for name in ("agent_id", "policy_id"):
        batch.non_tensor_batch[name][:] = [Counted(value) for value in batch.non_tensor_batch[name]]
    return batch


@pytest.mark.parametrize(
    "work",
    [split_batch_by_policies, lambda batch: compute_agent_metrics(batch, AlgorithmConfig())],
    ids=["split", "metrics"],
)
def test_names_are_compared_as_often_with_many_policies_as_with_few(work: Callable[[DataProto], Any]) -> None:
    comparisons = {}
    for agents in (4, 64):
        batch = batch_of(agents)
        Counted.comparisons = 0
        work(batch)
        comparisons[agents] = Counted.comparisons
    assert 0 < comparisons[64] < 1.5 * comparisons[4], comparisons


@pytest.mark.parametrize("name", ["metrics", "dropped"])
def test_rows_are_grouped_as_often_with_many_turns_as_with_few(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from verl.trainer.ppo.core_algos import grouping

    calls: list[int] = []
    number = grouping._number
    monkeypatch.setattr(grouping, "_number", lambda column: calls.append(len(column)) or number(column))
    rows = {}
    for turns in (2, 200):
        batch = batch_of(4)
        batch.non_tensor_batch["turn"] = np.arange(640, dtype=object) % turns + 1
        calls.clear()
        if name == "metrics":
            compute_agent_metrics(batch, AlgorithmConfig())
        else:
            list(_dropped_shares(batch, np.ones(640, dtype=bool), AlgorithmConfig()))
        rows[turns] = sum(calls)
    assert rows[2] == rows[200]


def test_an_epoch_is_put_in_order_once(monkeypatch: pytest.MonkeyPatch) -> None:
    generators: list[Any] = []
    make = np.random.default_rng
    monkeypatch.setattr(np.random, "default_rng", lambda seed: generators.append(seed) or make(seed))
    loader = TaskLoader(range(1000), 10)
    drawn = [task for _ in range(100) for task in loader.take(10)]
    assert sorted(drawn) == list(range(1000))
    assert len(generators) <= 2
