"""Every policy has a KL coefficient of its own."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from verl.protocol import DataProto
from verl.trainer.config import AlgorithmConfig, KLCtrlConfig
from verl.trainer.ppo.core_algos import get_kl_controller
from verl.trainer.ppo.credit.kl_in_reward import KLInReward

ADAPTIVE = AlgorithmConfig(kl_ctrl=KLCtrlConfig(kl_coef=0.1, horizon=10, target_kl=1.0))


def make_batch(gap: list[float], policies: list[str], mask: list[list[int]]) -> DataProto:
    """Rows whose old log-probs are `gap` above the reference."""
    shape = (len(gap), 2)
    tensors = {
        "token_level_scores": torch.tensor([[0.0, 1.0]]).repeat(len(gap), 1),
        "old_log_probs": torch.tensor(gap)[:, None].expand(shape).clone(),
        "ref_log_prob": torch.zeros(shape),
        "response_mask": torch.tensor(mask),
    }
    return DataProto.from_dict(tensors=tensors, non_tensors={"policy_id": np.array(policies, dtype=object)})


def test_the_coefficients_of_two_policies_part_ways() -> None:
    penalty = KLInReward(ADAPTIVE)
    # policy a is far from its reference (KL 5), policy b at it (KL 0); one row of b is padding
    batch = make_batch([5.0, 0.0, 5.0, 9.0], ["a", "b", "a", "b"], [[1, 1], [1, 1], [1, 1], [0, 0]])
    metrics = penalty.apply(batch)
    assert batch.batch["token_level_rewards"].tolist() == [
        pytest.approx([-0.5, 0.5]),
        [0.0, 1.0],
        pytest.approx([-0.5, 0.5]),
        [0.0, 1.0],
    ]
    assert metrics["wg/a/actor/reward_kl_penalty"] == 5.0 and metrics["wg/b/actor/reward_kl_penalty"] == 0.0
    assert metrics["actor/reward_kl_penalty"] == 2.5
    # errors are clipped to +-0.2, and move the coefficient by rows / horizon
    assert penalty.state_dict() == pytest.approx(
        {"a": 0.1 * (1 + 0.2 * 2 / 10), "b": 0.1 * (1 - 0.2 * 1 / 10)}
    )
    metrics = penalty.apply(batch)
    assert metrics["wg/a/actor/reward_kl_penalty_coeff"] > 0.1 > metrics["wg/b/actor/reward_kl_penalty_coeff"]


def test_a_policy_without_rows_keeps_its_coefficient() -> None:
    penalty = KLInReward(ADAPTIVE)
    penalty.apply(make_batch([5.0, 5.0], ["a", "b"], [[1, 1], [1, 1]]))
    before = penalty.state_dict()
    metrics = penalty.apply(make_batch([5.0, 5.0], ["a", "b"], [[1, 1], [0, 0]]))
    assert penalty.state_dict()["b"] == before["b"] != penalty.state_dict()["a"]
    assert "wg/b/actor/reward_kl_penalty" not in metrics


def test_the_coefficients_survive_a_checkpoint() -> None:
    first, second = KLInReward(ADAPTIVE), KLInReward(ADAPTIVE)
    batch = make_batch([5.0, 0.0], ["a", "b"], [[1, 1], [1, 1]])
    first.apply(batch)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    first.apply(batch)
    second.apply(batch)
    assert second.state_dict() == first.state_dict()


def test_a_fixed_coefficient_stays_for_all() -> None:
    penalty = KLInReward(AlgorithmConfig(kl_ctrl=KLCtrlConfig(kl_coef=0.3)))
    penalty.apply(make_batch([5.0, 0.0], ["a", "b"], [[1, 1], [1, 1]]))
    assert penalty.state_dict() == {"a": 0.3, "b": 0.3}


@pytest.mark.parametrize(("horizon", "sequences"), [(1, 4), (1, 6), (10000, 50_000), (10000, 200_000)])
def test_many_sequences_a_step_leave_the_coefficient_positive(horizon: int, sequences: int) -> None:
    """The gain stops at 1, where a step changes the coefficient by a fifth; below it the formula is the
    source's.
    """
    controller = get_kl_controller(KLCtrlConfig(kl_coef=0.001, horizon=horizon, target_kl=0.1))
    values = []
    for current in (0.0, 0.0, 1.0):
        controller.update(current, sequences)
        values.append(controller.value)
    assert values == pytest.approx([0.0008, 0.00064, 0.000768])
    half = get_kl_controller(KLCtrlConfig(kl_coef=0.001, horizon=2 * sequences, target_kl=0.1))
    half.update(0.0, sequences)
    assert half.value == pytest.approx(0.0009)
