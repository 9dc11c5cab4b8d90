"""The warning about samples that are not of the policy that they train: when it comes, of which samples, and
how often.
"""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from verl.protocol import DataProto
from verl.trainer.config import ActorRolloutRefConfig
from verl.trainer.ppo.gap_watch import EVERY, GapWatch

STEP = 4  # samples of the current weights have version 3


def team(dtype: str = "fp32", bypass: bool = False) -> Any:
    config = ActorRolloutRefConfig()
    config.rollout.dtype = dtype
    correction = SimpleNamespace(bypass_mode=bypass)
    return SimpleNamespace(
        learners={"writer": SimpleNamespace(wg_id="writer", temperature=1.0)},
        specs={"writer": SimpleNamespace(config=config)},
        controller=SimpleNamespace(device="cpu"),
        config=SimpleNamespace(algorithm=SimpleNamespace(rollout_correction=correction)),
    )


def batch(noise: float, *, stale: bool = False, masked: bool = False, scored: bool = True) -> DataProto:
    """Two rows of 40 tokens; the second one, noisy, is of older weights or sampled under a mask."""
    generator = torch.Generator().manual_seed(0)
    old = -3 * torch.rand(2, 40, generator=generator)
    noises = torch.tensor([[0.0 if stale or masked else noise], [noise]]) * torch.randn(
        2, 40, generator=generator
    )
    tensors = {
        "response_mask": torch.ones(2, 40, dtype=torch.long),
        "rollout_log_probs": (old + noises).clamp(max=0),
    }
    columns = {
        "policy_id": np.array(["writer"] * 2, dtype=object),
        "version": np.array([3, 3]),
        "oldest_version": np.array([3, 1 if stale else 3]),
        "masked": np.array([False, masked]),
    }
    return DataProto.from_dict(
        tensors=tensors | ({"old_log_probs": old} if scored else {}), non_tensors=columns
    )


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


def test_samples_of_another_policy_are_said_once_with_figures_and_bounds(
    caplog: pytest.LogCaptureFixture,
) -> None:
    watch = GapWatch(team())
    for step in range(STEP, STEP + EVERY):
        rows = batch(1.5)
        rows.non_tensor_batch["oldest_version"] = rows.non_tensor_batch["version"] = np.array([step - 1] * 2)
        watch.look(rows, step, {})
    (line,) = lines(caplog)
    assert (
        line.startswith(f"step {STEP} ")
        and "'writer'" in line
        and "expected at most 0.05" in line
        and "\n" not in line
    )
    assert (
        "probabilities differ by" in line
        and "the correlation of probabilities is" in line
        and "rollout.dtype" in line
    )
    rows.non_tensor_batch["oldest_version"] = np.array([STEP + EVERY - 1] * 2)
    watch.look(rows, STEP + EVERY, {})
    assert len(lines(caplog)) == 2


@pytest.mark.parametrize(
    ("dtype", "rows"),
    [
        ("fp32", batch(1e-3)),
        ("bf16", batch(0.08)),
        ("fp32", batch(1.5, stale=True)),
        ("fp32", batch(1.5, masked=True)),
        ("fp32", batch(1.5, stale=True, scored=False)),
    ],
    ids=["rounding", "bf16", "older weights", "masked", "older weights, measured in the update"],
)
def test_nothing_is_said_of_rounding_older_weights_and_masks(
    caplog: pytest.LogCaptureFixture, dtype: str, rows: DataProto
) -> None:
    measured = {
        f"wg/writer/{name}": 1.0
        for name in ("rollout_corr/log_prob_diff_mean", "training/rollout_probs_diff_mean")
    }
    GapWatch(team(dtype)).look(rows, STEP, measured)
    assert not lines(caplog)


def test_the_update_s_own_figures_count_where_it_measured_the_samples(
    caplog: pytest.LogCaptureFixture,
) -> None:
    figures = {"rollout_corr/log_prob_diff_mean": 0.3, "training/rollout_probs_diff_mean": 1e-3,
               "training/rollout_actor_probs_pearson_corr": 0.6}  # fmt: skip
    metrics = {f"wg/writer/{name}": value for name, value in figures.items()}
    rows = batch(0.0)
    rows.batch["old_log_probs"] = rows.batch["rollout_log_probs"]
    GapWatch(team(bypass=True)).look(rows, STEP, metrics)
    GapWatch(team("bf16", bypass=True)).look(rows, STEP, metrics)
    first, second = lines(caplog)
    assert "log-probs differ by 0.3" in first and "correlation of probabilities is 0.60" in first
    assert "log-probs differ" not in second and "correlation of probabilities is 0.60" in second
