"""GAE over tokens and over turns."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from verl.trainer.ppo.core_algos import compute_gae_advantage_return, get_adv_estimator_fn


def whitened(values: list[float]) -> list[float]:
    array = np.array(values)
    return list((array - array.mean()) / array.std(ddof=1))


def test_tokens_by_hand() -> None:
    # gamma = lam = 1/2:  A_2 = 1 - 2 = -1;  A_1 = 0 + 2/2 - 2 - 1/4 = -1.25;  A_0 = 0 + 2/2 - 1 - 1.25/4 =
    # -0.3125
    rewards, values, mask = torch.tensor([[0.0, 0.0, 1.0]]), torch.tensor([[1.0, 2.0, 2.0]]), torch.ones(1, 3)
    advantages, returns = get_adv_estimator_fn("gae")(
        token_level_rewards=rewards, response_mask=mask, values=values, gamma=0.5, lam=0.5
    )
    assert advantages[0].tolist() == pytest.approx(whitened([-0.3125, -1.25, -1.0]), abs=1e-6)
    assert returns[0].tolist() == pytest.approx([0.6875, 0.75, 1.0])


def test_masked_tokens_are_stepped_over_and_hold_zero() -> None:
    # as above without the middle token: A_2 = -1; A_0 = 0 + 2/2 - 1 - 1/4 = -0.25
    rewards = torch.tensor([[0.0, 9.0, 1.0, 0.0]])
    values = torch.tensor([[1.0, float("nan"), 2.0, 5.0]])
    advantages, returns = compute_gae_advantage_return(
        rewards, values, torch.tensor([[1, 0, 1, 0]]), 0.5, 0.5
    )
    assert returns[0].tolist() == pytest.approx([0.75, 0.0, 1.0, 0.0])
    assert advantages[0].tolist() == pytest.approx([2**-0.5, 0.0, -(2**-0.5), 0.0], abs=1e-6)


def test_padding_rows_are_nowhere() -> None:
    rewards, values, mask = torch.randn(3, 4), torch.randn(3, 4), torch.ones(3, 4)
    plain = compute_gae_advantage_return(rewards, values, mask, 0.9, 0.8)
    more = [
        torch.cat([rewards, torch.full((1, 4), 9.0)]),
        torch.cat([values, torch.full((1, 4), float("nan"))]),
    ]
    padded = compute_gae_advantage_return(*more, torch.cat([mask, torch.zeros(1, 4)]), 0.9, 0.8)
    for a, b in zip(plain, padded, strict=True):
        assert torch.equal(a, b[:3])
        assert (b[3] == 0).all()


def test_policies_are_whitened_apart() -> None:
    rewards, values, mask = torch.randn(4, 3), torch.randn(4, 3), torch.ones(4, 3)
    rewards[2:] *= 1000
    advantages, _ = compute_gae_advantage_return(
        rewards, values, mask, 1.0, 1.0, policy_index=np.array([0, 0, 1, 1])
    )
    alone, _ = compute_gae_advantage_return(rewards[:2], values[:2], mask[:2], 1.0, 1.0)
    assert torch.equal(advantages[:2], alone)


TURN = SimpleNamespace(gae=SimpleNamespace(level="turn"))


def test_turns_by_hand() -> None:
    # Episode e: replies with rewards 0 and 1 (sums over tokens) and first values 0.5 and 0.25; gamma = lam =
    # 1/2. A_2 = 1 - 0.25 = 0.75;  A_1 = 0 + 0.25/2 - 0.5 + 0.75/4 = -0.1875.  Episode f: one reply, A = 2 - 1
    # = 1.
    rewards = torch.tensor([[0.4, 0.6], [0.0, 0.0], [2.0, 7.0]])
    values = torch.tensor([[0.25, 9.0], [0.5, 9.0], [1.0, float("nan")]])
    mask = torch.tensor([[1, 1], [1, 1], [1, 0]])
    episode, turn = np.array(["e", "e", "f"], dtype=object), np.array([2, 1, 1], dtype=object)
    advantages, returns = compute_gae_advantage_return(
        rewards, values, mask, 0.5, 0.5, traj_uid=episode, turn_index=turn, config=TURN
    )
    expected = whitened([0.75, -0.1875, 1.0])
    assert advantages[:, 0].tolist() == pytest.approx(expected, abs=1e-6)
    assert advantages[:, 1].tolist() == pytest.approx([*expected[:2], 0.0], abs=1e-6)
    assert returns.tolist() == [
        pytest.approx([1.0, 1.0]),
        pytest.approx([0.3125, 0.3125]),
        pytest.approx([2.0, 0.0]),
    ]


def test_a_turn_is_followed_by_the_same_agents_next_turn_and_candidates_by_its_mean() -> None:
    # gamma = lam = 1, values 0: the return is what comes after. Agent x: turn 1 earns 1, turn 2 has
    # candidates 2 and 4 (mean 3); agent y: turn 1 earns 10.
    rewards = torch.tensor([[1.0], [10.0], [2.0], [4.0]])
    _, returns = compute_gae_advantage_return(
        rewards, torch.zeros(4, 1), torch.ones(4, 1), 1.0, 1.0,
        traj_uid=np.zeros(4), agent_index=np.array(["x", "y", "x", "x"], dtype=object),
        turn_index=np.array([1, 1, 2, 2]), level="turn",
    )  # fmt: skip
    assert returns[:, 0].tolist() == [4.0, 10.0, 2.0, 4.0]


def test_a_rejected_reply_has_no_advantage_but_is_what_the_reply_before_it_led_to() -> None:
    # gamma = lam = 1/2. The second reply (reward 4, first value 2) is rejected, the third earns 1 and was
    # worth 0: A_3 = 1; A_2 = 4 + 0/2 - 2 + 1/4 = 2.25; A_1 = 0 + 2/2 - 1 + 2.25/4 = 0.5625. Without the
    # rejected one A_1 = 0 + 0 - 1 + 1/4.
    rewards = torch.tensor([[0.0, 0.0], [0.0, 4.0], [1.0, 0.0], [float("nan"), 0.0]])
    values = torch.tensor([[1.0, 9.0], [2.0, 9.0], [0.0, 9.0], [float("nan"), 9.0]])
    mask, replies = (
        torch.tensor([[1, 1], [0, 0], [1, 0], [0, 0]]),
        torch.tensor([[1, 1], [1, 1], [1, 1], [0, 0]]),
    )
    columns = {"traj_uid": np.zeros(4), "turn_index": np.array([0, 1, 2, -1]), "config": TURN}
    advantages, returns = compute_gae_advantage_return(
        rewards, values, mask, 0.5, 0.5, **columns, reply_mask=replies
    )
    assert returns.tolist() == [[1.5625, 1.5625], [0.0, 0.0], [1.0, 0.0], [0.0, 0.0]]
    first, last = whitened([0.5625, 1.0])
    assert advantages[:, 0].tolist() == pytest.approx([first, 0.0, last, 0.0], abs=1e-6)
    assert compute_gae_advantage_return(rewards, values, mask, 0.5, 0.5, **columns)[1][0, 0] == pytest.approx(
        0.25
    )


def test_bad_input_is_named() -> None:
    ones = torch.ones(2, 3)
    with pytest.raises(ValueError, match=r"values \(2, 2\) and response_mask"):
        compute_gae_advantage_return(ones, ones[:, :2], ones, 1.0, 1.0)
    with pytest.raises(ValueError, match="values: 1 of 2 rows are not finite"):
        compute_gae_advantage_return(ones, torch.tensor([[0, 0, 0], [0, float("nan"), 0]]), ones, 1.0, 1.0)
    with pytest.raises(ValueError, match=r"algorithm\.gae\.level='word'"):
        compute_gae_advantage_return(ones, ones, ones, 1.0, 1.0, level="word")
    with pytest.raises(ValueError, match="needs traj_uid and turn_index"):
        compute_gae_advantage_return(ones, ones, ones, 1.0, 1.0, level="turn")
