"""Whole runs with critics: GAE for a team or for one agent."""

import math
from pathlib import Path

import pytest

from tests.e2e.conftest import Run, read_metrics

GAE = {"algorithm.adv_estimator": "gae", "critic.optim.lr": 0.01}


def steps_of(run_dir: Path) -> list[dict]:
    return [line for line in read_metrics(run_dir) if "critic/score/mean" in line]


def test_three_steps_of_gae_train_policies_and_critics(train: Run, tmp_path: Path) -> None:
    train(GAE | {"trainer.total_training_steps": 3})
    lines = steps_of(tmp_path / "run")
    assert [line["step"] for line in lines] == [1, 2, 3]
    for line in lines:
        assert all(math.isfinite(v) for v in line.values())
        for wg in ("asker", "verifier_agent"):
            assert line[f"wg/{wg}/critic/grad_norm"] > 0 and line[f"wg/{wg}/actor/grad_norm"] > 0
