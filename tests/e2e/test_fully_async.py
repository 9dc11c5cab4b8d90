"""`async_training.mode=fully_async`: episodes are collected all the time; without staleness it is synchronous training to the last bit."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import Run, read_metrics, weights
from tests.e2e.teams import ADAPTER, LEVELS, policies
from tests.e2e.test_one_step_off import FOUR, TREE, comparable
from verl.trainer.ppo.ray_trainer import RayPPOTrainer

ASYNC = {"async_training.mode": "fully_async", "algorithm.rollout_correction.rollout_is": "token"}
FRESH = ASYNC | {"async_training.staleness_threshold": 0}
VARIANTS: dict[str, dict[str, Any]] = {
    "parallel": {"algorithm.rollout_correction.rollout_is": "null"},
    "tree, adapters": TREE | {"agent.specialization": "lora"} | ADAPTER,
    "remax, one policy": {"algorithm.adv_estimator": "remax", "agent.model_sharing": True},
    "critics": {"algorithm.adv_estimator": "gae", "actor_rollout_ref.actor.ppo_epochs": 2},
}


def without_ledger(run_dir: Path) -> list[dict]:
    """The metrics of a run without its clock and without those that only this mode has."""
    return [{name: value for name, value in line.items() if "fully_async/" not in name} for line in comparable(run_dir)]


@pytest.mark.parametrize("variant", VARIANTS)
def test_without_staleness_it_equals_synchronous_training_to_the_last_bit(train: Run, tmp_path: Path, variant: str) -> None:
    keys = FRESH | VARIANTS[variant] | {"trainer.total_training_steps": 3}
    train(keys | {"trainer.default_local_dir": tmp_path / "async"})
    sync = {name: value for name, value in keys.items() if not name.startswith("async_training")}
    train(sync | {"trainer.default_local_dir": tmp_path / "sync"})
    assert policies(tmp_path / "async", 3) and policies(tmp_path / "async", 3) == policies(tmp_path / "sync", 3)
    assert without_ledger(tmp_path / "async") == without_ledger(tmp_path / "sync")
