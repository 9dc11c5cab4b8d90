"""Micro-batches become one number: means by weight, extremes as extremes, steps counted."""

import torch

from verl.workers.engine.ranks import GroupRanks
from verl.workers.engine.update_metrics import UpdateMetrics, fold


class TwoRanks(GroupRanks):
    """A second rank with the same values and one metric of its own."""

    def __init__(self) -> None:
        self.rank, self.size = 0, 2

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        return 2 * values

    def max(self, values: torch.Tensor) -> torch.Tensor:
        return values + 1

    def union(self, names: list[str]) -> list[str]:
        return sorted({*names, "actor/other"})


def test_means_extremes_and_counts() -> None:
    first: dict[str, float] = {}
    fold(
        first,
        {"actor/loss": 2.0, "actor/gap_max": 3.0, "actor/gap_min": 1.0, "actor/skipped_steps": 1.0},
        0.5,
    )
    fold(
        first,
        {"actor/loss": 4.0, "actor/gap_max": 2.0, "actor/gap_min": 2.0, "actor/skipped_steps": 1.0},
        0.5,
    )
    metrics = UpdateMetrics(TwoRanks(), "actor/skipped_steps")
    metrics.add(first)
    metrics.add({"actor/loss": 1.0, "actor/gap_max": 1.0, "actor/gap_min": 1.5, "actor/skipped_steps": 1.0})
    metrics.add({})
    assert metrics.result(tokens=7) == {
        "actor/loss": (3.0 + 1.0) / 2,
        "actor/other": 0.0,
        "actor/skipped_steps": 2.0,
        "actor/gap_max": 4.0,
        "actor/gap_min": 0.0,
        "perf/tokens": 14.0,
    }
