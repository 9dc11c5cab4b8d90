"""The early rule-out: better files seldom fall, whenever one looks; worse ones fall soon."""

from __future__ import annotations

import math
import random

from agent_system.evolve.race import is_ruled_out


def share_out(
    chance_better: float, chance_worse: float, tasks: int, margin: float, trials: int = 2000
) -> float:
    """Share of files that fall at any time, whose differences are 1, -1 or 0."""
    rng = random.Random(0)
    out = 0
    for _ in range(trials):
        draws = (rng.random() for _ in range(tasks))
        d = [1.0 if x < chance_better else -1.0 if x < chance_better + chance_worse else 0.0 for x in draws]
        out += is_ruled_out(d, margin)
    return out / trials


def test_a_file_that_is_better_by_the_margin_falls_in_a_fifth_of_searches_at_most() -> None:
    for better, worse, margin in ((0.21, 0.2, 0.01), (0.06, 0.01, 0.05), (0.5, 0.4, 0.1)):
        assert share_out(better, worse, 256, margin) <= 0.2


def test_a_file_that_is_much_worse_falls_within_64_tasks() -> None:
    assert share_out(0.05, 0.35, 64, 0.01) > 0.95
    assert share_out(0.0, 0.0, 64, 0.01) == 0, "a copy is never ruled out"


def test_differences_are_cut_and_without_a_limit_none_falls() -> None:
    assert is_ruled_out([-7.0] * 20, 0.01) == is_ruled_out([-1.0] * 20, 0.01) is True
    assert not is_ruled_out([-1.0] * 1000, 0.01, math.inf)
    assert not is_ruled_out([], 0.01)
