"""Group keys, penalties and token rewards."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from verl.protocol import DataProto
from verl.trainer.config import AlgorithmConfig
from verl.trainer.plan.agents import group_fields
from verl.trainer.ppo.core_algos import register_adv_est
from verl.trainer.ppo.core_algos.kl import apply_kl_penalty
from verl.trainer.ppo.credit.advantage import compute_advantage
from verl.trainer.ppo.reward import place_on_last_token


def batch(rewards: list[float], **columns: list) -> DataProto:
    mask = torch.tensor([[1, 1, 0]] * len(rewards))
    tensors = {"response_mask": mask, "token_level_rewards": place_on_last_token(np.array(rewards), mask)}
    return DataProto.from_dict(
        tensors=tensors, non_tensors={k: np.array(v, dtype=object) for k, v in columns.items()}
    )


TEAM = {"uid": ["t"] * 4, "traj_uid": ["e1", "e1", "e2", "e2"], "agent_id": ["S", "V", "S", "V"]}


def advantage(rewards: list[float], **changes) -> DataProto:
    config = AlgorithmConfig(**changes)
    return compute_advantage(
        batch(rewards, **TEAM), config.adv_estimator, norm_adv_by_std_in_grpo=False, config=config
    )


def test_code_written_for_verl_calls_it_with_the_estimators_name_alone() -> None:
    data = batch([1.0, 3.0], uid=["t", "t"])
    by_name = compute_advantage(data, "grpo", gamma=1.0, lam=1.0, num_repeat=2, norm_adv_by_std_in_grpo=False)
    assert by_name.batch["advantages"][:, 0].tolist() == [-1.0, 1.0]


def test_dr_mas_compares_an_agent_with_itself_only() -> None:
    data = advantage([1.0, 10.0, 0.0, 30.0])
    assert data.batch["advantages"][:, 0].tolist() == [0.5, -10.0, -0.5, 10.0]


def test_grpo_by_task_averages_an_episode_first() -> None:
    data = advantage([1.0, 3.0, 0.0, 0.0], group_by=["uid"])
    assert data.batch["advantages"][:, 0].tolist() == [1.0, 1.0, -1.0, -1.0]


def test_a_group_key_that_samples_lack_is_named() -> None:
    assert group_fields(AlgorithmConfig(group_by=["uid", "turn"])) == ["uid", "turn"]
    with pytest.raises(ValueError, match="turn"):
        advantage([1.0] * 4, group_by=["uid", "turn"])


def test_a_users_estimator_gets_what_it_asks_for() -> None:
    @register_adv_est("test_credit_mine")
    def mine(
        token_level_rewards: torch.Tensor, response_mask: torch.Tensor, index: np.ndarray
    ) -> tuple[torch.Tensor, torch.Tensor]:
        out = response_mask * torch.as_tensor(index).unsqueeze(1).float()
        return out, out

    data = advantage([0.0] * 4, adv_estimator="test_credit_mine")
    assert data.batch["advantages"][:, 0].tolist() == [0.0, 1.0, 0.0, 1.0]


def test_the_reward_stands_on_the_last_token_and_padding_rows_get_none() -> None:
    mask = torch.tensor([[1, 1, 0], [1, 1, 1], [1, 0, 1], [0, 0, 0]])
    expected = [[0, 2.0, 0], [0, 0, 3.0], [0, 0, 4.0], [0, 0, 0]]
    assert place_on_last_token(np.array([2.0, 3.0, 4.0, 5.0]), mask).tolist() == expected


def test_kl_in_the_reward_by_hand() -> None:
    data = batch([1.0, 0.0], **{k: v[:2] for k, v in TEAM.items()})
    data.batch["token_level_scores"] = data.batch["token_level_rewards"]
    data.batch["old_log_probs"] = torch.tensor([[-1.0, -1.0, 9.0]] * 2)
    data.batch["ref_log_prob"] = torch.tensor([[-2.0, -1.0, 0.0]] * 2)
    data, metrics = apply_kl_penalty(
        data, SimpleNamespace(value=0.1, update=lambda current_kl, n_steps: None)
    )
    assert data.batch["token_level_rewards"].tolist() == [
        pytest.approx([-0.1, 1.0, 0.0]),
        pytest.approx([-0.1, 0.0, 0.0]),
    ]
    assert metrics["actor/reward_kl_penalty"] == pytest.approx(0.5)
