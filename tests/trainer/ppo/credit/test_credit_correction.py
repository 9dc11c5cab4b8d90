"""Credit corrects before it compares: what is rejected is in no statistic, no metric and no reward."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import pytest
import torch

from tests.plans import plan_of
from verl.protocol import DataProto
from verl.trainer.config import AlgorithmConfig, KLCtrlConfig, RolloutCorrectionConfig, RunConfig
from verl.trainer.ppo.credit.step_credit import CreditAssigner
from verl.trainer.ppo.metric_utils import compute_agent_metrics, compute_data_metrics
from verl.utils.timer import Timer

MASK = torch.tensor([[1, 1, 1], [1, 1, 0], [1, 1, 1], [1, 1, 1]])
REWARDS = [1.0, 2.0, 30.0, 6.0]
# Token ratios to the sampler, as logarithms: the third reply is far off, the last token of the first as well.
X = torch.tensor([[0.0, 0.0, 3.0], [0.0, 0.0, 0.0], [3.0, 3.0, 3.0], [0.0, 0.1, 0.0]])


@dataclass
class ScriptedTeam:
    """Log-probs by hand in the place of worker groups."""

    uses_reference: bool = False
    uses_critic: bool = False
    passes: list[str] = field(default_factory=list)

    def compute_log_prob(self, batch: DataProto, sum_pi_squared: bool = False) -> DataProto:
        self.passes.append("old")
        tensors = {"old_log_probs": torch.full(MASK.shape, -1.0) * batch.batch["response_mask"]}
        if sum_pi_squared:  # 1 - 2 pi + sum of pi^2 is 1 at every token
            tensors["sum_pi_squared"] = 2 * tensors["old_log_probs"].exp()
        return DataProto.from_dict(tensors=tensors)

    def compute_values(self, batch: DataProto) -> DataProto:
        return DataProto.from_dict(tensors={"values": torch.ones(MASK.shape)})

    def compute_ref_log_prob(self, batch: DataProto) -> DataProto:
        return DataProto.from_dict(tensors={"ref_log_prob": torch.full(MASK.shape, -3.0)})


def make_batch(**changes: list) -> DataProto:
    columns = {
        "uid": ["t"] * 4, "traj_uid": list("abcd"), "agent_id": ["Solver Agent"] * 4, "policy_id": ["p"] * 4,
        "wg_id": ["p"] * 4,
        "reward": REWARDS, "version": [3, 3, 2, 1], "masked": [False] * 4,
    } | changes  # fmt: skip
    tensors = {
        "response_mask": MASK.clone(), "responses": torch.zeros(4, 3).long(),
        "attention_mask": torch.ones(4, 5).long(),
        "rollout_log_probs": (-1.0 - X) * MASK,
    }  # fmt: skip
    return DataProto.from_dict(
        tensors=tensors,
        non_tensors={name: np.array(values, dtype=object) for name, values in columns.items()},
    )


def score(
    on_policy: bool = True,
    team: ScriptedTeam | None = None,
    algorithm: AlgorithmConfig | None = None,
    warmup: int = 0,
    structured: str = "refuse",
    columns: dict[str, list] | None = None,
    **correction: object,
) -> tuple[DataProto, dict[str, float]]:
    config = RunConfig()
    config.trainer.critic_warmup, config.gateway.structured = warmup, structured
    config.algorithm = algorithm or AlgorithmConfig(norm_adv_by_std_in_grpo=False)
    config.algorithm.rollout_correction = RolloutCorrectionConfig(**correction)  # type: ignore[arg-type]
    plan = replace(plan_of(config), on_policy=on_policy)
    assigner = CreditAssigner(config, plan, team or ScriptedTeam())  # type: ignore[arg-type]
    return assigner.score(make_batch(**columns or {}), Timer(), version=3)


def test_a_rejected_reply_is_in_no_group_mean_and_in_no_metric() -> None:
    batch, metrics = score(rollout_rs="seq_mean_k1", rollout_rs_threshold="0.1_10.0")
    # the group's mean is that of 1, 2 and 6, without the 30
    assert batch.batch["advantages"].tolist() == [[-2.0] * 3, [-1.0, -1.0, 0.0], [0.0] * 3, [3.0] * 3]
    assert len(batch) == 4 and batch.batch["response_mask"].sum(dim=1).tolist() == [3, 2, 0, 3]
    data = compute_data_metrics(batch, use_critic=False)
    assert data["critic/score/max"] == 6.0 and data["critic/advantages/min"] == -2.0
    assert compute_agent_metrics(batch)["agent/solver_agent/advantage_abs"] == pytest.approx(2.0)
    assert metrics["rollout_corr/rollout_rs_seq_masked_fraction"] == 0.25


def test_a_reply_that_loses_its_last_token_keeps_its_reward() -> None:
    batch, _ = score(rollout_rs="token_k1", rollout_rs_threshold="0.1_10.0")
    assert batch.batch["response_mask"].tolist() == [[1, 1, 0], [1, 1, 0], [0, 0, 0], [1, 1, 1]]
    assert batch.batch["token_level_scores"].tolist() == [[0, 1, 0], [0, 2, 0], [0, 0, 30], [0, 0, 6]]
    assert batch.batch["advantages"][:, 0].tolist() == [-2.0, -1.0, 0.0, 3.0]


def test_a_rejected_call_keeps_its_reward_in_the_returns_of_the_calls_before_it() -> None:
    # One step each; the third reply (30) is rejected. Episode e is rows 0 and 2: its first step returns 1 +
    # 30 / 2 = 16; f: 2 and then 6.
    columns = {
        "traj_uid": ["e", "f", "e", "f"], "turn": [1, 1, 2, 2], "anchor": ["s", "s", "x", "y"],
        "step_reward": REWARDS,
    }  # fmt: skip
    algorithm = AlgorithmConfig(adv_estimator="gigpo", gamma=0.5)
    batch, _ = score(
        algorithm=algorithm, columns=columns, rollout_rs="seq_mean_k1", rollout_rs_threshold="0.1_10.0"
    )
    # episode part: 1, 2 and 6 less their mean 3; step part in "s": 16 and 5 less their mean 10.5
    assert batch.batch["advantages"][:, 0].tolist() == [-2.0 + 5.5, -1.0 - 5.5, 0.0, 3.0]
    assert torch.equal(batch.batch["reply_mask"], MASK)


def test_m2po_masks_after_the_advantages_and_only_what_they_drive_from_the_sampler() -> None:
    batch, metrics = score(m2po_tau=0.04)
    # advantages are those of all four replies (mean 9.75); x = 3 is bounded in the third reply (A > 0), not
    # in the first (A < 0)
    assert batch.batch["advantages"][:, 0].tolist() == [-8.75, -7.75, 20.25, -3.75]
    assert batch.batch["response_mask"].tolist() == [[1, 1, 1], [1, 1, 0], [0, 0, 0], [1, 1, 1]]
    assert (
        metrics["rollout_corr/m2po_masked_fraction"]
        == metrics["wg/p/rollout_corr/m2po_masked_fraction"]
        == pytest.approx(3 / 11)
    )
    assert (
        metrics["rollout_corr/m2po_m2"] == pytest.approx(9.0) and metrics["rollout_corr/m2po_m2_kept"] == 0.0
    )


def test_weights_arrive_beside_the_advantages_and_reject_nothing() -> None:
    batch, metrics = score(rollout_is="token", rollout_is_threshold=2.0)
    assert torch.allclose(batch.batch["rollout_is_weights"], torch.exp(X).clamp(max=2.0) * MASK)
    assert torch.equal(batch.batch["response_mask"], MASK)
    assert metrics["rollout_corr/rollout_is_max"] == metrics["wg/p/rollout_corr/rollout_is_max"] == 2.0


def test_old_log_probs_are_computed_only_when_something_needs_them() -> None:
    for wanted, arguments in [
        (False, {}),
        (True, {"on_policy": False}),
        (True, {"rollout_is": "token"}),
        (True, {"m2po_tau": 0.04}),
        (True, {"structured": "mask"}),
        (False, {"bypass_mode": True}),
        (
            False,
            {"bypass_mode": True, "on_policy": False, "rollout_rs": "token_k1", "rollout_rs_threshold": 2.0},
        ),
    ]:
        team = ScriptedTeam()
        _, metrics = score(team=team, **arguments)  # type: ignore[arg-type]
        assert team.passes == ["old"] * wanted and ("gateway/solver_agent/masked_calls" in metrics) == (
            "structured" in arguments
        )


def test_bypass_makes_the_sampler_the_old_policy_and_leaves_rejection_to_the_loss() -> None:
    batch, _ = score(bypass_mode=True, on_policy=False, rollout_rs="seq_mean_k1", rollout_rs_threshold=2.0)
    assert torch.equal(batch.batch["old_log_probs"], batch.batch["rollout_log_probs"])
    assert torch.equal(batch.batch["response_mask"], MASK)


def test_gap_and_staleness_are_logged_when_nothing_is_corrected() -> None:
    _, metrics = score(on_policy=False)
    tokens = int(MASK.sum())
    assert metrics["rollout_corr/log_prob_diff_mean"] == pytest.approx((3.0 + 9.0 + 0.1) / tokens)
    assert metrics["rollout_corr/log_prob_diff_max"] == pytest.approx(3.0)
    assert metrics["rollout_corr/rollout_is_ratio_fraction_high"] == pytest.approx(4 / tokens)
    assert 0 < metrics["training/rollout_probs_diff_mean"] < metrics["training/rollout_probs_diff_max"] < 1
    assert 0 < metrics["rollout_corr/rollout_is_eff_sample_size"] < 1
    assert (
        metrics["agent/solver_agent/staleness/mean"] == pytest.approx(9 / 11)
        and metrics["agent/solver_agent/staleness/max"] == 2.0
    )


@pytest.mark.parametrize("bypass", [False, True])
def test_the_gap_is_logged_while_the_policies_wait_for_their_critics(bypass: bool) -> None:
    """No update measures it then; weights of version 3 belong to the fourth step."""
    team = ScriptedTeam()
    batch, metrics = score(team=team, warmup=4, bypass_mode=bypass)
    assert team.passes == ["old"]
    assert metrics["rollout_corr/log_prob_diff_mean"] == pytest.approx((3.0 + 9.0 + 0.1) / int(MASK.sum()))
    assert metrics["wg/p/rollout_corr/log_prob_diff_max"] == pytest.approx(3.0)
    assert torch.equal(batch.batch["old_log_probs"], batch.batch["rollout_log_probs"]) == bypass
    team = ScriptedTeam()
    _, metrics = score(team=team, warmup=3, bypass_mode=bypass)
    assert team.passes == [] and not [name for name in metrics if "rollout_corr/" in name]


def test_the_kl_of_rejected_tokens_is_in_no_reward() -> None:
    algorithm = AlgorithmConfig(kl_ctrl=KLCtrlConfig(kl_coef=0.1), norm_adv_by_std_in_grpo=False)
    team = ScriptedTeam(uses_reference=True)
    batch, metrics = score(
        team=team, algorithm=algorithm, rollout_rs="token_k1", rollout_rs_threshold="0.1_10.0"
    )
    # KL 2 a token: two kept tokens of the first reply cost 0.4
    assert batch.batch["token_level_rewards"].sum(dim=1).tolist() == pytest.approx([0.6, 1.6, 30.0, 5.4])
    assert metrics["actor/reward_kl_penalty"] == metrics["wg/p/actor/reward_kl_penalty"] == 2.0


def token_scores(estimator: str, algorithm: AlgorithmConfig | None = None, **correction: object) -> DataProto:
    """A batch of four calls with rewards on tokens, scored."""
    config = RunConfig()
    config.algorithm = algorithm or AlgorithmConfig(adv_estimator=estimator, gamma=0.5)
    config.algorithm.rollout_correction = RolloutCorrectionConfig(**correction)  # type: ignore[arg-type]
    batch = make_batch()
    batch.batch["token_rewards"] = torch.tensor(
        [[0.5, 0.0, 0.25], [4.0, -1.0, 0.0], [0.0] * 3, [0.0, 8.0, 0.0]], dtype=torch.float64
    )
    team = ScriptedTeam(uses_critic=estimator == "gae")
    batch, _ = CreditAssigner(config, plan_of(config), team).score(batch, Timer(), version=3)  # type: ignore[arg-type]
    return batch


def test_rewards_of_tokens_stay_where_they_are_and_the_last_token_gets_the_rest() -> None:
    batch = token_scores("reinforce_plus_plus")
    assert batch.batch["token_level_scores"].tolist() == [
        [0.5, 0.0, 0.5],
        [4.0, -2.0, 0.0],
        [0.0, 0.0, 30.0],
        [0.0, 8.0, -2.0],
    ]
    assert batch.batch["token_level_scores"].sum(dim=1).tolist() == REWARDS
    assert batch.batch["returns"].tolist()[0] == [0.5 + 0.5 * 0.25, 0.25, 0.5], (
        "discounted from where each token got its own"
    )
    assert (
        token_scores("grpo").batch["advantages"].tolist()
        == score(algorithm=AlgorithmConfig())[0].batch["advantages"].tolist()
    )


def test_the_reward_of_a_rejected_token_goes_to_the_last_one_that_is_kept() -> None:
    batch = token_scores("reinforce_plus_plus", rollout_rs="token_k1", rollout_rs_threshold="0.1_10.0")
    assert batch.batch["token_level_scores"].tolist() == [
        [0.5, 0.5, 0.0],
        [4.0, -2.0, 0.0],
        [0.0, 0.0, 30.0],
        [0.0, 8.0, -2.0],
    ]


def test_gae_bootstraps_from_the_token_that_got_the_reward() -> None:
    # gamma = lam = 1/2, all values 1: A_t = r_t + V_(t+1) / 2 - 1 + A_(t+1) / 4, with V = A = 0 after the
    # last token
    batch = token_scores("gae", AlgorithmConfig(adv_estimator="gae", gamma=0.5, lam=0.5))
    raw = torch.tensor(
        [[-0.15625, -0.625, -0.5], [2.75, -3.0, 0.0], [1.1875, 6.75, 29.0], [1.1875, 6.75, -3.0]]
    )
    assert torch.equal(batch.batch["returns"], (raw + 1.0) * MASK)
    tokens = raw[MASK.bool()]
    assert torch.allclose(batch.batch["advantages"], (raw - tokens.mean()) / tokens.std() * MASK)


@pytest.mark.parametrize("estimator", ["optimal_token_baseline", "tir_optimal_token_baseline"])
def test_token_baselines_are_means_of_the_rewards_to_go_of_tokens(estimator: str) -> None:
    """All gradients are equally large, so a baseline is the mean of a column: of 1, 2, 30 and 6 in
    the first.
    """
    batch = token_scores(estimator)
    assert batch.batch["returns"].tolist() == [
        [1.0, 0.5, 0.5],
        [2.0, -2.0, 0.0],
        [30.0] * 3,
        [6.0, 6.0, -2.0],
    ]
    means = torch.tensor([9.75, 8.625, 9.5])
    assert torch.allclose(batch.batch["advantages"], (batch.batch["returns"] - means) * MASK)
    kept = token_scores(estimator, rollout_rs="token_k1", rollout_rs_threshold="0.1_10.0")
    # without the third reply and the last token of the first one; the last token of the fourth, the only one
    # left, has no baseline
    expected = torch.tensor(
        [[1.0 - 3.0, 0.5 - 1.5, 0.0], [2.0 - 3.0, -2.0 - 1.5, 0.0], [0.0] * 3, [6.0 - 3.0, 6.0 - 1.5, -2.0]]
    )
    assert torch.allclose(kept.batch["advantages"], expected)
