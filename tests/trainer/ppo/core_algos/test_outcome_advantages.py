"""GRPO and RLOO by hand, and the deliberate differences from the predecessors."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from verl.trainer.ppo.core_algos import compute_grpo_outcome_advantage, compute_rloo_outcome_advantage

ESTIMATORS = (compute_grpo_outcome_advantage, compute_rloo_outcome_advantage)


def batch(
    scores: list[float], lengths: list[int] | None = None, width: int = 3
) -> tuple[torch.Tensor, torch.Tensor]:
    """Token rewards with each score on its row's last token, and the mask."""
    lengths = lengths or [width] * len(scores)
    mask = (torch.arange(width) < torch.tensor(lengths).unsqueeze(1)).long()
    rewards = torch.zeros(len(scores), width)
    for i, (score, length) in enumerate(zip(scores, lengths, strict=True)):
        if length:
            rewards[i, length - 1] = score
    return rewards, mask


def rows(advantages: torch.Tensor) -> list[float]:
    return advantages[:, 0].tolist()


def test_grpo_by_hand() -> None:
    rewards, mask = batch([1.0, 0.0, 2.0, 5.0, 7.0], [3, 2, 1, 3, 3])
    advantages, returns = compute_grpo_outcome_advantage(
        rewards, mask, np.array(["a", "a", "a", "b", "b"], dtype=object)
    )
    root = 2**0.5
    assert rows(advantages) == pytest.approx([0.0, -1.0, 1.0, -1 / root, 1 / root], abs=1e-5)
    assert torch.equal(advantages, returns)
    assert torch.equal(advantages != 0, (mask.bool() & (advantages[:, :1] != 0)))


def test_grpo_without_std_is_dr_grpo() -> None:
    rewards, mask = batch([1.0, 0.0, 5.0])
    advantages, _ = compute_grpo_outcome_advantage(rewards, mask, np.zeros(3), norm_adv_by_std_in_grpo=False)
    assert rows(advantages) == pytest.approx([-1.0, -2.0, 3.0])


def test_rloo_by_hand() -> None:
    rewards, mask = batch([1.0, 0.0, 2.0])
    advantages, _ = compute_rloo_outcome_advantage(rewards, mask, np.zeros(3))
    assert rows(advantages) == pytest.approx([0.0, -1.5, 1.5])


def test_trajectories_are_averaged_first_and_share_one_advantage() -> None:
    rewards, mask = batch([1.0, 1.0, 1.0, 0.0])
    traj = np.array(["x", "x", "x", "y"], dtype=object)
    advantages, _ = compute_grpo_outcome_advantage(rewards, mask, np.zeros(4), traj_index=traj)
    assert rows(advantages) == pytest.approx([2**-0.5] * 3 + [-(2**-0.5)], abs=1e-5)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_a_group_of_one_has_no_advantage_unless_raw_is_asked_for(estimator) -> None:
    rewards, mask = batch([3.0, 1.0, 0.0])
    index = np.array(["alone", "b", "b"], dtype=object)
    assert rows(estimator(rewards, mask, index)[0])[0] == 0.0
    assert rows(estimator(rewards, mask, index, config=SimpleNamespace(singleton="raw"))[0])[0] == 3.0
    with pytest.raises(ValueError, match="singleton"):
        estimator(rewards, mask, index, config=SimpleNamespace(singleton="maybe"))


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_equal_scores_give_exactly_zero(estimator) -> None:
    rewards, mask = batch([0.1 + 0.2] * 7)
    assert (estimator(rewards, mask, np.zeros(7))[0] == 0).all()


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_padding_rows_change_nothing(estimator) -> None:
    rewards, mask = batch([1.0, 0.0, 2.0])
    padded_rewards, padded_mask = batch([1.0, 0.0, 2.0, 9.0], [3, 3, 3, 0])
    padded_rewards[3] = 9.0
    plain, _ = estimator(rewards, mask, np.zeros(3))
    padded, _ = estimator(padded_rewards, padded_mask, np.zeros(4))
    assert torch.equal(plain, padded[:3])
    assert (padded[3] == 0).all()


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_rewards_that_are_not_finite_are_an_error(estimator) -> None:
    rewards, mask = batch([1.0, float("nan")])
    with pytest.raises(ValueError, match="row 1"):
        estimator(rewards, mask, np.zeros(2))


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_columns_of_another_length_are_an_error(estimator) -> None:
    rewards, mask = batch([1.0, 0.0, 2.0])
    for wrong in (
        {"index": np.zeros(2)},
        {"index": np.zeros(4)},
        {"traj_index": np.zeros(1)},
        {"weights": np.ones(1)},
    ):
        with pytest.raises(ValueError, match=f"{next(iter(wrong))} has . entries for the 3 rows"):
            estimator(rewards, mask, **{"index": np.zeros(3)} | wrong)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_double_precision_rewards_give_double_precision_advantages(estimator) -> None:
    """float32 holds 1000.1 to 3e-5 only."""
    rewards, mask = batch([1000.1, 1000.2])
    rewards = rewards.double()
    rewards[rewards > 0] = torch.tensor([1000.1, 1000.2], dtype=torch.float64)
    advantages, _ = estimator(rewards, mask, np.zeros(2))
    assert advantages.dtype == torch.float64
    assert estimator(rewards.float(), mask, np.zeros(2))[0].dtype == torch.float32


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 4), st.floats(-5, 5, width=32)), min_size=1, max_size=40), st.randoms()
)
def test_shuffled_rows_give_the_same_advantages_to_the_bit(data, random) -> None:
    groups, scores = np.array([g for g, _ in data]), [s for _, s in data]
    order = list(range(len(data)))
    random.shuffle(order)
    for estimator in ESTIMATORS:
        plain, _ = estimator(*batch(scores), groups)
        shuffled, _ = estimator(*batch([scores[i] for i in order]), groups[order])
        assert torch.equal(plain[order], shuffled)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.floats(-5, 5, width=32)), min_size=1, max_size=40))
def test_groups_never_see_each_other_and_sum_to_zero(data) -> None:
    groups, scores = np.array([g for g, _ in data]), [s for _, s in data]
    for estimator in ESTIMATORS:
        whole, _ = estimator(*batch(scores), groups)
        for g in set(groups):
            inside = groups == g
            alone, _ = estimator(
                *batch([s for s, i in zip(scores, inside, strict=True) if i]), groups[inside]
            )
            assert torch.equal(whole[torch.as_tensor(inside)], alone)
            assert abs(alone[:, 0].sum().item()) < 1e-3
