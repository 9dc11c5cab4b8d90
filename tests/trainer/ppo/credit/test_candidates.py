"""Committed replies learn from their episode, and all candidates of a call from each other: hand-computed for each estimator."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from verl.protocol import DataProto
from verl.trainer.config import AlgorithmConfig
from verl.trainer.config.algorithm import GAEConfig, GiGPOConfig, MGRPOConfig
from verl.trainer.ppo.credit.advantage import compute_advantage
from verl.trainer.ppo.credit.candidates import compute_committed_advantage
from verl.trainer.ppo.reward import place_on_last_token

# Two episodes of two calls with two candidates each; of each call the committed one is marked.
COMMITTED = [1, 0, 0, 1, 0, 1, 1, 0]
OWN = [0.2, 0.6, 1.0, 0.0, 0.5, 0.5, 0.3, 0.1]
DIFFERENCE = np.array([-0.2, 0.2, 0.5, -0.5, 0.0, 0.0, 0.1, -0.1])
REWARD = [1.0, 9.0, 9.0, 1.0, 9.0, 0.0, 0.0, 9.0]  # a reward of 9 must reach no estimator
GAINS = np.array([0.5, 0, 0, 0.5, 0, -0.5, -0.5, 0])


def tree(**changes: Any) -> DataProto:
    n = len(COMMITTED)
    columns: dict[str, Any] = {
        "uid": ["t"] * n,
        "traj_uid": ["e"] * 4 + ["f"] * 4,
        "agent_id": ["S"] * n,
        "policy_id": ["S"] * n,
        "turn": [1, 1, 2, 2] * 2,
        "call": [0] * n,
        "candidate": [0, 1] * 4,
        "committed": [bool(c) for c in COMMITTED],
        "candidate_reward": OWN,
        "invalid_penalty": [0.0] * n,
        "overlong_penalty": [0.0] * n,
        "reward": REWARD,
        "anchor": ["s", "s", "e2", "e2", "s", "s", "f2", "f2"],
        "step_reward": [0.2, 9.0, 9.0, 0.0, 9.0, 0.5, 0.3, 9.0],
        "reward_baselines": [0.25] * n,
    } | {name: value for name, value in changes.items() if name not in ("mask", "values")}
    mask = torch.tensor(changes.get("mask", [[1, 1]] * n))
    scores = place_on_last_token(np.array(columns["reward"], dtype=float), mask)
    tensors = {"response_mask": mask, "token_level_scores": scores, "token_level_rewards": scores}
    if "values" in changes:
        tensors["values"] = torch.tensor(changes["values"]).unsqueeze(1).expand(-1, 2)
    return DataProto.from_dict(tensors=tensors, non_tensors={k: np.array(v, dtype=object) for k, v in columns.items()})


def credited(data: DataProto, weight: float = 1.0, **changes: Any) -> DataProto:
    config = AlgorithmConfig(**({"norm_adv_by_std_in_grpo": False, "group_by": ["uid", "agent_id"]} | changes))
    by_std = config.norm_adv_by_std_in_grpo
    estimate = partial(
        compute_advantage,
        adv_estimator=config.adv_estimator, gamma=config.gamma, lam=config.lam, norm_adv_by_std_in_grpo=by_std, config=config,
    )  # fmt: skip
    return compute_committed_advantage(data, estimate, config, weight)


def advantages(data: DataProto) -> np.ndarray:
    return data.batch["advantages"][:, 0].numpy()


def near(values: Any) -> Any:
    return pytest.approx(np.asarray(values), abs=1e-6)


def test_grpo_compares_episodes_by_committed_replies_and_candidates_by_their_own_step() -> None:
    found = credited(tree())
    assert advantages(found) == near([0.3, 0.2, 0.5, 0.0, 0.0, -0.5, -0.4, -0.1])
    assert "row_weights" not in found.batch


def test_candidates_are_compared_by_the_deviation_of_their_call_as_in_at_grpo() -> None:
    found = advantages(credited(tree(), norm_adv_by_std_in_grpo=True))
    half, std = 0.5 / np.std([1, 1, 0, 0], ddof=1), 0.5**0.5
    assert np.allclose(found, [half - std, std, std, half - std, 0, -half, -half + std, -std], atol=1e-4)


def test_gigpo_adds_its_steps_from_equal_states_of_committed_replies() -> None:
    # G of the two committed steps in state s: 0.2 + 0.5 * 0.0 and 0.5 + 0.5 * 0.3; their mean is 0.425.
    step = np.array([-0.225, 0, 0, 0, 0, 0.225, 0, 0])
    options = {"adv_estimator": "gigpo", "gamma": 0.5, "gigpo": GiGPOConfig(step_advantage_w=2.0)}
    assert advantages(credited(tree(), **options)) == near(GAINS + 2 * step + DIFFERENCE)
    assert advantages(credited(tree(), weight=0.5, **options)) == near(GAINS + 2 * step + 0.5 * DIFFERENCE)


def test_gae_follows_the_values_of_committed_replies_only() -> None:
    options = {"adv_estimator": "gae", "group_by": None, "gae": GAEConfig(level="turn"), "gamma": 1.0, "lam": 1.0}
    data = tree(reward=[0.0, 9.0, 9.0, 1.0, 9.0, 0.0, 0.0, 9.0], values=[0.4, 7.0, 7.0, 0.6, 7.0, 0.1, 0.2, 7.0])
    found = credited(data, **options)
    # delta: 0.6 - 0.4, 1 - 0.6; 0.2 - 0.1, -0.2. Sums 0.6, 0.4, -0.1, -0.2: mean 0.175, variance 0.4475 / 3.
    whitened = (np.array([0.6, 0, 0, 0.4, 0, -0.1, -0.2, 0]) - 0.175 * np.array(COMMITTED)) / (0.4475 / 3) ** 0.5
    assert np.allclose(advantages(found), whitened + DIFFERENCE, atol=1e-5)
    assert found.batch["returns"][:, 0].numpy() == near([1.0, 0, 0, 1.0, 0, 0.0, 0.0, 0])


def test_remax_subtracts_the_greedy_episode_from_committed_replies_only() -> None:
    found = advantages(credited(tree(), adv_estimator="remax", group_by=None))
    assert found == near(np.array([0.75, 0, 0, 0.75, 0, -0.25, -0.25, 0]) + DIFFERENCE)


def test_m_grpo_draws_committed_calls_and_the_candidates_of_a_call_share_its_weight() -> None:
    options = {"adv_estimator": "m_grpo", "group_by": ["uid"]}
    main = credited(tree(), m_grpo=MGRPOConfig(main_agent="S"), **options)
    assert advantages(main) == near(GAINS + DIFFERENCE)
    sub = credited(tree(), m_grpo=MGRPOConfig(main_agent="other", sub_calls=1), **options)
    weights = sub.batch["row_weights"].numpy()
    assert (weights[::2] == weights[1::2]).all(), "the candidates of a call have the weight of its committed reply"
    assert [weights[:4].sum(), weights[4:].sum()] == [2.0, 2.0], "one of two calls of each episode is drawn"
    drawn = (weights > 0) & np.array(COMMITTED, dtype=bool)
    assert advantages(sub) == near(np.where(drawn, GAINS, 0.0) + DIFFERENCE)


def test_calls_are_weighed_by_the_committed_ones_and_not_by_their_candidates() -> None:
    assert credited(tree(), call_weighting="trajectory").batch["row_weights"].tolist() == [0.5] * 8


def test_without_the_comparison_other_candidates_have_no_part_in_the_loss() -> None:
    found = credited(tree(), weight=0.0)
    assert advantages(found) == near(GAINS)
    assert found.batch["row_weights"].tolist() == COMMITTED


def test_penalties_and_the_kl_are_part_of_the_comparison() -> None:
    data = tree(invalid_penalty=[0.0, 0.4] + [0.0] * 6)
    assert advantages(credited(data))[:2] == near([0.5, 0.0]), "0.6 - 0.4 = 0.2: both candidates are equal"
    data = tree()
    data.batch["token_level_rewards"] = data.batch["token_level_scores"].clone()
    data.batch["token_level_rewards"][1, 0] -= 0.4
    assert advantages(credited(data))[:2] == near([0.5, 0.0])


def test_rejected_candidates_are_compared_with_nobody() -> None:
    data = tree(mask=[[1, 1], [0, 0]] + [[1, 1]] * 6)
    assert advantages(credited(data)) == near([0.5, 0.0, 0.5, 0.0, 0.0, -0.5, -0.4, -0.1])


@pytest.mark.parametrize("estimator", ["grpo", "gigpo", "gae", "remax", "m_grpo"])
def test_the_order_of_rows_and_other_tasks_change_nothing(estimator: str) -> None:
    rng = np.random.default_rng(3)
    options: dict[str, Any] = {
        "adv_estimator": estimator,
        "group_by": ["uid"] if estimator in ("grpo", "gigpo", "m_grpo") else None,
        "m_grpo": MGRPOConfig(main_agent="S"),
        "gae": GAEConfig(level="turn"),
        "statistics_over": "auto",
    }
    pair = {"traj_uid": ["e"] * 4 + ["f"] * 4, "values": rng.random(8).tolist(), "candidate_reward": rng.random(8).tolist()}
    data = tree(**pair, reward=rng.random(8).tolist())
    order = rng.permutation(8)
    expected = credited(data.select_idxs(np.arange(8)), **options)
    shuffled = credited(data.select_idxs(order), **options)
    assert np.allclose(advantages(shuffled), advantages(expected)[order], atol=1e-6)
    if estimator == "gae":
        return  # whitened over the policy
    other = tree(**pair, uid=["u"] * 8, reward=rng.random(8).tolist())
    other.non_tensor_batch["traj_uid"] = np.array(["g"] * 4 + ["h"] * 4, dtype=object)
    joined = DataProto.concat([data.select_idxs(np.arange(8)), other])
    assert np.allclose(advantages(credited(joined, **options))[:8], advantages(expected), atol=1e-6)
