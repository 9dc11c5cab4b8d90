"""The one entry: defaults, failed episodes, order, and repeated use."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_system.reward import assign_rewards
from agent_system.rollout.batch import build_batch
from verl.trainer.config import AlgorithmConfig
from verl.trainer.config.algorithm import GAEConfig
from verl.trainer.config.reward import RewardConfig
from verl.trainer.ppo.credit.advantage import compute_advantage
from verl.trainer.ppo.reward import place_on_last_token

from .conftest import call, chain, episode

numbers = st.floats(-1e6, 1e6, allow_nan=False)


@settings(max_examples=50, deadline=None)
@given(st.lists(numbers, min_size=1, max_size=4), numbers, numbers)
def test_by_default_a_sample_earns_alpha_times_the_episodes_sum_and_its_local_reward_to_the_bit(
    local: list[float], team: float, alpha: float
) -> None:
    (record,), metrics = assign_rewards([chain(local, team)], RewardConfig(alpha=alpha))
    assert [s.rewards.reward for s in record.samples] == [alpha * (0.0 + team) + value for value in local]
    assert {type(s.rewards.reward) for s in record.samples} == {float}
    assert metrics == {}


def test_failed_episodes_count_for_nothing_and_stay_in_their_place() -> None:
    good, bad = chain([0.5], 1.0, "good"), episode([call("A", 1, 0, local=9.0)], [0.0], "bad", failure="gone")
    rewarded, _ = assign_rewards([bad, good, bad], RewardConfig())
    assert [r.traj_uid for r in rewarded] == ["bad", "good", "bad"]
    assert rewarded[0] is bad
    assert rewarded[1].samples[0].rewards.reward == 1.5


def test_no_sample_at_all_is_fine() -> None:
    empty = episode([], [1.0])
    assert assign_rewards([empty], RewardConfig(shaping="hop_discount")) == ([empty], {})
    assert assign_rewards([], RewardConfig()) == ([], {})


def test_assigning_twice_changes_nothing() -> None:
    records = [chain([0.1, 0.9], 1.0), chain([0.4], 2.0)]
    options = RewardConfig(alpha=2.0, team_scope="turn", shaping="hop_weighted")
    once, _ = assign_rewards(records, options, {"A0": 1.0})
    assert assign_rewards(once, options, {"A0": 1.0})[0] == once


def test_gae_over_turns_counts_the_reward_of_a_call_of_several_generations_once() -> None:
    # Three rounds of one call, which act pays 1 and locally 0.25; the first one is not valid, which costs
    # 0.5. Then a call that gets 2.
    rounds = [call("A", 1, i, local=0.25, valid=i > 0).with_identity(final_call=2) for i in range(2)]
    record = episode([*rounds, call("A", 1, 2, act=1.0, local=0.25), call("A", 2, 0, act=2.0)], [0.0, 0.0])
    batch = build_batch(assign_rewards([record], RewardConfig(team_scope="call"), {"A": 0.5})[0])
    assert batch is not None and batch.non_tensor_batch["reward"].tolist() == [0.75, 1.25, 1.25, 2.0]
    batch.batch["token_level_rewards"] = place_on_last_token(
        batch.non_tensor_batch["reward"], batch.batch["response_mask"]
    )
    batch.batch["values"] = torch.zeros_like(batch.batch["token_level_rewards"])
    found = compute_advantage(
        batch, "gae", config=AlgorithmConfig(adv_estimator="gae", gae=GAEConfig(level="turn"))
    )
    assert found.batch["returns"][:, 0].tolist() == [2.75, 3.25, 3.25, 2.0]
