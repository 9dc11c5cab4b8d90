"""GiGPO: episode advantage plus step advantage."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from verl.trainer.ppo.core_algos import compute_gigpo_outcome_advantage as gigpo
from verl.trainer.ppo.core_algos import compute_step_discounted_returns


def config(**keys) -> SimpleNamespace:
    defaults = {
        "step_advantage_w": 1.0,
        "mode": "mean_norm",
        "enable_similarity": False,
        "similarity_thresh": 0.95,
    }
    return SimpleNamespace(gigpo=SimpleNamespace(**defaults | keys), gamma=0.5, singleton="zero")


def test_returns_by_hand() -> None:
    # agent x in t: 4, then 2: 2 and 4 + 2/2 = 5; agent y in t and agent x in u are chains of their own; order
    # of rows is free
    returns = compute_step_discounted_returns(
        np.array([2.0, 4.0, 8.0, 1.0]),
        np.array(["t", "t", "t", "u"], dtype=object),
        np.array([5, 1, 3, 1]),
        0.5,
        np.array(["x", "x", "y", "x"], dtype=object),
    )
    assert returns.tolist() == [2.0, 5.0, 8.0, 1.0]


def test_candidates_of_a_call_keep_their_own_reward_and_are_followed_by_the_mean() -> None:
    # turn 1: candidates 1 and 3; turn 2: candidates 4 and 8, mean 6
    returns = compute_step_discounted_returns(
        np.array([1.0, 3.0, 4.0, 8.0]), np.zeros(4), np.array([1, 1, 2, 2]), 0.5
    )
    assert returns.tolist() == [4.0, 6.0, 4.0, 8.0]


def test_rows_that_are_not_there_break_no_chain() -> None:
    valid = np.array([True, False, True])
    returns = compute_step_discounted_returns(
        np.array([1.0, np.nan, 4.0]), np.zeros(3), np.arange(3), 0.5, valid=valid
    )
    assert returns.tolist() == [3.0, 0.0, 4.0]
    assert compute_step_discounted_returns(np.zeros(0), np.zeros(0), np.zeros(0), 1.0).shape == (0,)


# Two episodes of two steps, t scores 3 and u scores 1; both begin in state "s", then t sees "a" and u sees
# "b".
TRAJ = np.array(["t", "t", "u", "u"], dtype=object)
TURN = np.array([1, 2, 1, 2])
STATES = np.array(["s", "a", "s", "b"], dtype=object)


def test_by_hand(rows) -> None:
    # episode: mean 2, so +1 and -1. Step returns, gamma 1/2: t 0 + 3/2 = 1.5, u 0 + 1/2 = 0.5, mean 1; "a"
    # and "b" are alone.
    rewards, mask = rows([3.0, 3.0, 1.0, 1.0], [3, 1, 3, 3])
    steps = np.array([0.0, 3.0, 0.0, 1.0])
    arguments = {"traj_uid": TRAJ, "turn_index": TURN}
    advantages, returns = gigpo(rewards, steps, mask, STATES, np.zeros(4), config=config(), **arguments)
    assert advantages[:, 0].tolist() == [1.5, 1.0, -1.5, -1.0]
    assert advantages[1].tolist() == [1.0, 0.0, 0.0]
    assert advantages is returns
    half = gigpo(rewards, steps, mask, STATES, np.zeros(4), config=config(step_advantage_w=0.5), **arguments)[
        0
    ]
    assert half[:, 0].tolist() == [1.25, 1.0, -1.25, -1.0]


def test_without_turns_step_rewards_are_returns_already_as_in_verl_agent(rows) -> None:
    rewards, mask = rows([3.0, 3.0, 1.0, 1.0])
    advantages, _ = gigpo(rewards, torch.tensor([1.5, 3.0, 0.5, 1.0]), mask, STATES, np.zeros(4), TRAJ)
    assert advantages[:, 0].tolist() == [1.5, 1.0, -1.5, -1.0]


def test_mean_std_norm_by_hand(rows) -> None:
    # over trajectories: scores 3 and 1, std sqrt(2), so +-1/sqrt(2); steps in "s": 1.5 and 0.5, std
    # sqrt(1/2), so +-0.5 * sqrt(2)
    rewards, mask = rows([3.0, 3.0, 1.0, 1.0])
    advantages, _ = gigpo(
        rewards, np.array([1.5, 3.0, 0.5, 1.0]), mask, STATES, np.zeros(4), TRAJ, mode="mean_std_norm"
    )
    assert advantages[:, 0].tolist() == pytest.approx([2**0.5, 2**-0.5, -(2**0.5), -(2**-0.5)], abs=1e-5)


def test_a_trajectory_counts_once_when_there_is_one(rows) -> None:
    # trajectory t has three rows: over trajectories the mean is 2, over rows (3 * 3 + 1) / 4 = 2.5
    rewards, mask = rows([3.0, 3.0, 3.0, 1.0])
    arguments = (rewards, np.zeros(4), mask, np.array(list("abcd"), dtype=object), np.zeros(4))
    trajectory = np.array(["t", "t", "t", "u"], dtype=object)
    assert gigpo(*arguments, trajectory)[0][:, 0].tolist() == [1.0, 1.0, 1.0, -1.0]
    assert gigpo(*arguments, traj_uid=trajectory)[0][:, 0].tolist() == [0.5, 0.5, 0.5, -1.5]


def test_steps_of_different_groups_never_meet(rows) -> None:
    rewards, mask = rows([1.0, 1.0])
    advantages, _ = gigpo(
        rewards,
        np.array([0.0, 9.0]),
        mask,
        np.array(["s", "s"], dtype=object),
        np.array([0, 1]),
        np.arange(2),
    )
    assert (advantages == 0).all()


def test_similar_states_meet_when_asked(rows) -> None:
    rewards, mask = rows([1.0, 1.0])
    arguments = (
        rewards,
        np.array([0.0, 2.0]),
        mask,
        np.array(["room number 1", "room number 2"], dtype=object),
        np.zeros(2),
        np.arange(2),
    )
    assert (gigpo(*arguments)[0] == 0).all()
    assert gigpo(*arguments, enable_similarity=True, similarity_thresh=0.9)[0][:, 0].tolist() == [-1.0, 1.0]


def test_equal_values_are_exactly_zero_and_padding_is_nowhere(rows) -> None:
    rewards, mask = rows([0.1, 0.1, 0.1, 9.0], [3, 3, 3, 0])
    steps, states = np.array([0.3, 0.3, 0.3, np.nan]), np.array(["s"] * 4, dtype=object)
    advantages, _ = gigpo(rewards, steps, mask, states, np.zeros(4), np.arange(4), mode="mean_std_norm")
    assert (advantages == 0).all()


def test_weights_reach_both_parts(rows) -> None:
    # weights 1/2, 1/2, 1. Over rows: mean (1/2 * 0 + 1/2 * 4 + 1 * 4) / 2 = 3; steps: mean (1/2 * 4 + 1/2 * 0
    # + 1 * 0) / 2 = 1
    rewards, mask = rows([0.0, 4.0, 4.0])
    states = np.array(["s"] * 3, dtype=object)
    advantages, _ = gigpo(
        rewards, np.array([4.0, 0.0, 0.0]), mask, states, np.zeros(3), weights=np.array([0.5, 0.5, 1.0])
    )
    assert advantages[:, 0].tolist() == [0.0, 0.0, 0.0]
    advantages, _ = gigpo(rewards, np.zeros(3), mask, states, np.zeros(3), weights=np.array([0.5, 0.5, 1.0]))
    assert advantages[:, 0].tolist() == [-3.0, 1.0, 1.0]


def test_a_state_seen_once_adds_nothing_even_when_singletons_are_raw(rows) -> None:
    rewards, mask = rows([3.0])
    raw = config()
    raw.singleton = "raw"
    advantages, _ = gigpo(
        rewards, np.array([5.0]), mask, np.array(["s"], dtype=object), np.zeros(1), config=raw
    )
    assert advantages[0, 0] == 3.0


def test_bad_input_is_named(rows) -> None:
    rewards, mask = rows([1.0, 2.0])
    states = np.array(["s", "s"], dtype=object)
    with pytest.raises(ValueError, match=r"algorithm\.gigpo\.mode='median'"):
        gigpo(rewards, np.zeros(2), mask, states, np.zeros(2), mode="median")
    with pytest.raises(ValueError, match="needs step_rewards and anchor_obs"):
        gigpo(rewards, np.zeros(2), mask, None, np.zeros(2))
    with pytest.raises(ValueError, match="step_rewards: 1 of 2 rows are not finite"):
        gigpo(rewards, np.array([0.0, np.nan]), mask, states, np.zeros(2))
    with pytest.raises(ValueError, match="needs traj_uid"):
        gigpo(rewards, np.zeros(2), mask, states, np.zeros(2), turn_index=np.zeros(2))
    with pytest.raises(ValueError, match="anchor_obs has 1 entries"):
        gigpo(rewards, np.zeros(2), mask, states[:1], np.zeros(2))


def test_an_empty_row_joins_no_states_and_needs_no_anchor(rows) -> None:
    states = np.array(["room x", "room xx", "room xxx", None], dtype=object)
    arguments = {"enable_similarity": True, "similarity_thresh": 0.9}
    for lengths, expected in [([3, 3, 3, 0], [-1.0, 1.0, 0.0, 0.0]), ([0, 3, 3, 0], [0.0, -2.0, 2.0, 0.0])]:
        rewards, mask = rows([1.0, 1.0, 1.0, 1.0], lengths)
        advantages, _ = gigpo(
            rewards, np.array([0.0, 2.0, 6.0, np.nan]), mask, states, np.zeros(4), **arguments
        )
        assert advantages[:, 0].tolist() == expected
    empty = torch.zeros_like(mask)
    assert (gigpo(rewards, np.zeros(4), empty, states, np.zeros(4), **arguments)[0] == 0).all()


def test_a_rejected_step_is_in_no_statistic_but_keeps_its_reward_for_the_steps_before_it(rows) -> None:
    # gamma 1/2. t: step 1 earns 0 and is followed by a rejected step of 4 and a last one of 8: G = 0 + 4/2 +
    # 8/4 = 4. u earns 2. Both began in "s": mean 3. Without the rejected step it would be G = 8/2. The
    # episode part is 0.
    rewards, mask = rows([1.0] * 4)
    kept = mask * torch.tensor([[1], [0], [1], [1]])
    trajectory, states = (
        np.array(["t", "t", "t", "u"], dtype=object),
        np.array(["s", "s", "end", "s"], dtype=object),
    )
    arguments = {
        "traj_uid": trajectory,
        "turn_index": np.array([1, 2, 3, 1]),
        "config": config(),
        "reply_mask": mask,
    }
    advantages, _ = gigpo(rewards, np.array([0.0, 4.0, 8.0, 2.0]), kept, states, np.zeros(4), **arguments)
    assert advantages[:, 0].tolist() == [1.0, 0.0, 0.0, -1.0]
    # Nothing came after the rejected step: G = 4/2, not 0.
    kept, arguments["reply_mask"] = (
        mask * torch.tensor([[1], [0], [0], [1]]),
        mask * torch.tensor([[1], [1], [0], [1]]),
    )
    advantages, _ = gigpo(rewards, np.array([0.0, 4.0, np.nan, 0.0]), kept, states, np.zeros(4), **arguments)
    assert advantages[:, 0].tolist() == [1.0, 0.0, 0.0, -1.0]


def test_a_rejected_candidate_does_not_count_where_another_of_its_call_is_left(rows) -> None:
    # t: step 1 is followed by candidates of 4 and (rejected) 100: G = 4/2 = 2. u earns 0. Both began in "s".
    rewards, mask = rows([1.0] * 4)
    kept = mask * torch.tensor([[1], [1], [0], [1]])
    trajectory, states = (
        np.array(["t", "t", "t", "u"], dtype=object),
        np.array(["s", "end", "end", "s"], dtype=object),
    )
    arguments = {
        "traj_uid": trajectory,
        "turn_index": np.array([1, 2, 2, 1]),
        "config": config(),
        "reply_mask": mask,
    }
    advantages, _ = gigpo(rewards, np.array([0.0, 4.0, 100.0, 0.0]), kept, states, np.zeros(4), **arguments)
    assert advantages[:, 0].tolist() == [1.0, 0.0, 0.0, -1.0]
