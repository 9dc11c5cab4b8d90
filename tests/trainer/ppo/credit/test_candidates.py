"""Committed replies learn from their episode, and all candidates of a call from each other: hand-computed for
each estimator.
"""

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
from verl.trainer.ppo.credit.candidates import compare_candidates, compute_committed_advantage
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
    return DataProto.from_dict(
        tensors=tensors, non_tensors={k: np.array(v, dtype=object) for k, v in columns.items()}
    )


def credited(data: DataProto, weight: float = 1.0, **changes: Any) -> DataProto:
    config = AlgorithmConfig(
        **({"norm_adv_by_std_in_grpo": False, "group_by": ["uid", "agent_id"]} | changes)
    )
    by_std = config.norm_adv_by_std_in_grpo
    estimate = partial(
        compute_advantage,
        adv_estimator=config.adv_estimator, gamma=config.gamma, lam=config.lam,
        norm_adv_by_std_in_grpo=by_std, config=config,
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
    options = {
        "adv_estimator": "gae",
        "group_by": None,
        "gae": GAEConfig(level="turn"),
        "gamma": 1.0,
        "lam": 1.0,
    }
    data = tree(
        reward=[0.0, 9.0, 9.0, 1.0, 9.0, 0.0, 0.0, 9.0], values=[0.4, 7.0, 7.0, 0.6, 7.0, 0.1, 0.2, 7.0]
    )
    found = credited(data, **options)
    # delta: 0.6 - 0.4, 1 - 0.6; 0.2 - 0.1, -0.2. Sums 0.6, 0.4, -0.1, -0.2: mean 0.175, variance 0.4475 / 3.
    whitened = (np.array([0.6, 0, 0, 0.4, 0, -0.1, -0.2, 0]) - 0.175 * np.array(COMMITTED)) / (
        0.4475 / 3
    ) ** 0.5
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
    assert (weights[::2] == weights[1::2]).all(), (
        "the candidates of a call have the weight of its committed reply"
    )
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


ESTIMATORS: dict[str, dict[str, Any]] = {
    "grpo": {},
    "grpo, trajectories": {"group_by": ["uid"], "statistics_over": "trajectories"},
    "rloo": {"adv_estimator": "rloo", "call_weighting": "trajectory"},
    "opo": {"adv_estimator": "opo"},
    "gigpo": {"adv_estimator": "gigpo", "gamma": 0.9},
    "m_grpo": {
        "adv_estimator": "m_grpo",
        "group_by": ["uid"],
        "m_grpo": MGRPOConfig(main_agent="S", sub_calls=2),
    },
    "remax": {"adv_estimator": "remax"},
    "gae, turns": {"adv_estimator": "gae", "gae": GAEConfig(level="turn"), "gamma": 0.9, "lam": 0.8},
    "gae, tokens": {"adv_estimator": "gae", "gamma": 0.9, "lam": 0.8},
    "reinforce_plus_plus": {"adv_estimator": "reinforce_plus_plus"},
}
OVER_THE_POLICY = ("gae, turns", "gae, tokens", "reinforce_plus_plus")


def forest(seed: int) -> DataProto:
    """Two tasks of two episodes: random calls of two agents with 1 to 3 candidates; tasks have the same names
    of states.
    """
    rng = np.random.default_rng(seed)
    rows = [
        (task, f"{task}{episode}", ("S", "V")[call % 2], turn, call, candidate)
        for task, episode in ((task, episode) for task in "tu" for episode in "ef")
        for turn in range(1, rng.integers(2, 4))
        for call in range(2)
        for candidate in range(rng.integers(1, 4))
    ]
    names = ("uid", "traj_uid", "agent_id", "turn", "call", "candidate")
    columns: dict[str, Any] = {
        name: list(values) for name, values in zip(names, zip(*rows, strict=True), strict=True)
    }
    n = len(rows)
    columns |= {
        name: rng.integers(0, 5, n).astype(float).tolist()
        for name in ("candidate_reward", "reward", "step_reward")
    }
    columns |= {name: [0.0] * n for name in ("invalid_penalty", "overlong_penalty")} | {
        "policy_id": columns["agent_id"]
    }
    columns |= {"reward_baselines": [1.0] * n, "anchor": [f"s{turn}" for turn in columns["turn"]]}
    return tree(
        **columns,
        committed=[c == 0 for c in columns["candidate"]],
        mask=[[1, 1]] * n,
        values=rng.random(n).tolist(),
    )


def all_tokens(data: DataProto) -> np.ndarray:
    return np.hstack(
        [
            data.batch["advantages"].numpy(),
            data.batch.get("row_weights", torch.ones(len(data))).numpy()[:, None],
        ]
    )


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", ESTIMATORS)
def test_order_other_tasks_and_rows_without_tokens_change_nothing(name: str, seed: int) -> None:
    options = {"norm_adv_by_std_in_grpo": True} | ESTIMATORS[name]
    data = forest(seed)
    n = len(data)
    found = all_tokens(credited(data.select_idxs(np.arange(n)), **options))
    order = np.random.default_rng(seed).permutation(n)
    assert np.allclose(all_tokens(credited(data.select_idxs(order), **options)), found[order], atol=1e-5)
    task = np.flatnonzero(data.non_tensor_batch["uid"] == "t")
    if name not in OVER_THE_POLICY:
        assert np.allclose(all_tokens(credited(data.select_idxs(task), **options)), found[task], atol=1e-5)
    rejected = np.flatnonzero(data.non_tensor_batch["candidate"] == 2)
    assert len(rejected)
    kept = np.setdiff1d(np.arange(n), rejected)
    empty = data.select_idxs(np.arange(n))
    empty.batch["response_mask"][rejected] = 0
    empty.batch["token_level_rewards"] = empty.batch["token_level_scores"]
    with_empty = all_tokens(credited(empty, **options))
    assert np.allclose(with_empty[kept], all_tokens(credited(data.select_idxs(kept), **options)), atol=1e-5)
    assert not with_empty[rejected, :2].any()


@pytest.mark.parametrize("seed", range(3))
def test_the_comparison_of_a_call_sums_to_0_and_a_call_with_one_candidate_has_none(seed: int) -> None:
    data = forest(seed)
    calls = np.unique(
        np.stack([data.non_tensor_batch[c].astype(str) for c in ("traj_uid", "turn", "call")]),
        axis=1,
        return_inverse=True,
    )[1]
    own = compare_candidates(data, AlgorithmConfig())
    sums, sizes = np.bincount(calls.ravel(), weights=own), np.bincount(calls.ravel())
    assert np.allclose(sums, 0.0, atol=1e-9) and own.any()
    assert not own[sizes[calls.ravel()] == 1].any() and (sizes == 1).any()
