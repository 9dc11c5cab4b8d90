"""A run whose sampler lies about its log-probs: the correction reaches the update, and a policy may lose all
its rows.
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.docs.pages import pages
from tests.e2e.conftest import Run, read_metrics, weights
from verl.protocol import DataProto
from verl.trainer.ppo.credit.step_credit import CreditAssigner

ONE_STEP = {"trainer.total_training_steps": 1, "trainer.save_freq": 1}


@pytest.fixture
def lying_sampler(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Makes the sampler's log-probs of the Verifier too low by a number of nats a token."""
    honest = CreditAssigner.score

    def lie(nats: float) -> None:
        def score(self: CreditAssigner, batch: DataProto, *args: Any, **named: Any) -> Any:
            off = (
                torch.as_tensor(batch.non_tensor_batch["agent_id"] == "Verifier Agent")[:, None]
                * batch.batch["response_mask"]
            )
            batch.batch["rollout_log_probs"] = batch.batch["rollout_log_probs"] - nats * off
            return honest(self, batch, *args, **named)

        monkeypatch.setattr(CreditAssigner, "score", score)

    return lie


def first_step(run_dir: Path) -> dict[str, Any]:
    return next(line for line in read_metrics(run_dir) if "actor/lr" in line)


def test_token_weights_scale_the_update_of_the_policy_that_is_off(
    train: Run, tmp_path: Path, lying_sampler: Callable
) -> None:
    plain = {"actor_rollout_ref.actor.grad_clip": 1e9} | ONE_STEP
    correction = {
        "algorithm.rollout_correction.rollout_is": "token",
        "algorithm.rollout_correction.rollout_is_threshold": 3.0,
    }
    train(plain | {"trainer.default_local_dir": tmp_path / "plain"})
    lying_sampler(1.0)
    train(plain | correction)
    before, after = first_step(tmp_path / "plain"), first_step(tmp_path / "run")
    # every token of the Verifier weighs e, every token of the other agent 1
    assert after["wg/verifier_agent/rollout_corr/rollout_is_mean"] == pytest.approx(2.71828, rel=1e-3)
    assert after["wg/asker/rollout_corr/rollout_is_mean"] == pytest.approx(1.0, rel=1e-3)
    assert after["wg/verifier_agent/actor/grad_norm"] == pytest.approx(
        2.71828 * before["wg/verifier_agent/actor/grad_norm"], rel=1e-3
    )
    assert after["wg/asker/actor/grad_norm"] == pytest.approx(before["wg/asker/actor/grad_norm"], rel=1e-3)
    assert after["rollout_corr/log_prob_diff_max"] == pytest.approx(1.0, rel=1e-3)
    assert after["agent/asker/staleness/max"] == 0.0 and before["rollout_corr/log_prob_diff_max"] < 1e-5


@pytest.mark.parametrize(
    "keys",
    [
        {"rollout_rs": "seq_mean_k3", "rollout_rs_threshold": 0.1},
        {"bypass_mode": True, "rollout_rs": "seq_mean_k3", "rollout_rs_threshold": 0.1},
    ],
    ids=["rejection", "bypass"],
)
def test_a_policy_that_loses_all_its_rows_stays_as_it_is(
    train: Run, tmp_path: Path, lying_sampler: Callable, keys: dict
) -> None:
    lying_sampler(2.0)
    train(
        {f"algorithm.rollout_correction.{name}": value for name, value in keys.items()}
        | ONE_STEP
        | {"trainer.total_training_steps": 2}
    )
    first, second = weights(tmp_path / "run", 1), weights(tmp_path / "run", 2)
    assert {wg for wg in first if first[wg] != second[wg]} == {"asker"}
    line = first_step(tmp_path / "run")
    assert "wg/verifier_agent/actor/grad_norm" not in line and line["actor/grad_norm"] > 0
    assert "agent/verifier_agent/advantage_abs" not in line or keys.get("bypass_mode")


@pytest.mark.parametrize("loss_type", ["ppo_clip", "reinforce"])
def test_bypass_trains_several_mini_batches_without_a_pass_for_old_log_probs(
    train: Run, tmp_path: Path, loss_type: str
) -> None:
    keys = {
        "bypass_mode": True,
        "loss_type": loss_type,
        "rollout_rs": "token_k1",
        "rollout_rs_threshold": 3.0,
    }
    keys |= {"rollout_is": "token"} if loss_type == "reinforce" else {}
    changes = {f"algorithm.rollout_correction.{name}": value for name, value in keys.items()}
    train(changes | {"actor_rollout_ref.actor.ppo_mini_batch_size": 1} | ONE_STEP)
    line = first_step(tmp_path / "run")
    assert "timing_s/old_log_prob" not in line and line["actor/grad_norm"] > 0
    assert 0 < line["rollout_corr/log_prob_diff_mean"] <= line["rollout_corr/log_prob_diff_max"] < 1e-4


def test_in_bypass_mode_a_run_logs_the_corrections_metrics_that_the_page_promises(
    train: Run, tmp_path: Path
) -> None:
    """Those of docs/metrics.md that are not said to be missing in it."""
    keys = {
        "bypass_mode": True,
        "loss_type": "reinforce",
        "rollout_is": "token",
        "rollout_rs": "token_k1",
        "rollout_rs_threshold": 3.0,
    }
    train(
        {f"algorithm.rollout_correction.{name}": value for name, value in (keys | {"m2po_tau": 0.04}).items()}
        | ONE_STEP
    )
    told = [line for line in pages()["docs/metrics.md"].splitlines() if line.startswith("| `rollout_corr/")]
    names = [line.split(" | ")[0] for line in told if "not with `bypass_mode`" not in line]
    promised = {name for cell in names for name in re.findall("`([^`]+)`", cell)}
    assert promised == {name for name in first_step(tmp_path / "run") if name.startswith("rollout_corr/")}
