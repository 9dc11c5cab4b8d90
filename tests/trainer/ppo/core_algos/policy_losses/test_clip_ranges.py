"""Which side each clip range bounds, by hand, where `clip_ratio_low` and `clip_ratio_high` differ; and the
bounds behind the clip.
"""

import math

import pytest
import torch

from verl.trainer.config import ActorConfig
from verl.trainer.config.model import PolicyLossConfig
from verl.trainer.ppo.core_algos import get_policy_loss_fn

LOW, HIGH = 0.1, 0.5


def per_row(
    name: str, old: list[float], new: list[float], advantages: list[float], **keys: float
) -> tuple[list[float], list[bool]]:
    """Loss of each one-token row, and whether its log-prob has a gradient; `old` and `new` are
    probabilities.
    """
    config = ActorConfig(**{"clip_ratio_low": LOW, "clip_ratio_high": HIGH, "clip_ratio_c": 20.0} | keys)
    losses, moves = [], []
    for before, after, advantage in zip(old, new, advantages, strict=True):
        log_prob = torch.tensor([[math.log(after)]], requires_grad=True)
        columns = (
            torch.tensor([[math.log(before)]]),
            log_prob,
            torch.tensor([[advantage]]),
            torch.ones(1, 1),
        )
        loss, _ = get_policy_loss_fn(name)(*columns, "seq-mean-token-mean", config)
        (gradient,) = torch.autograd.grad(loss, log_prob)
        losses.append(loss.item())
        moves.append(bool(gradient.any()))
    return losses, moves


# Ratios 1.4 and 1.6 with A = 1 (bound 1.5), 0.95 and 0.8 with A = -1 (bound 0.9).
OLD, NEW, A = [0.5, 0.5, 0.5, 0.5], [0.7, 0.8, 0.475, 0.4], [1.0, 1.0, -1.0, -1.0]


@pytest.mark.parametrize("name", ["vanilla", "gspo", "clip_cov"])
def test_a_gain_is_bounded_by_high_and_a_loss_by_low(name: str) -> None:
    keys = (
        {"policy_loss": PolicyLossConfig(clip_cov_lb=100.0, clip_cov_ub=101.0)} if name == "clip_cov" else {}
    )
    losses, moves = per_row(name, OLD, NEW, A, **keys)
    assert losses == pytest.approx([-1.4, -1.5, 0.95, 0.9])
    assert moves == [True, False, True, False]


def test_clip_cov_draws_from_what_these_bounds_leave() -> None:
    """Two tokens of one row: ratio 1.4 and 1.6, A = 1 and 3; the band holds both covariances, the second
    token is clipped.

    Mean A 2, mean log-prob ln(0.7 * 0.8) / 2, covariances both ln(0.8 / 0.7) / 2 = 0.067. One place for one
    candidate: q = 1.
    """
    keys = PolicyLossConfig(clip_cov_ratio=0.5, clip_cov_lb=0.01, clip_cov_ub=1.0)
    config = ActorConfig(clip_ratio_low=LOW, clip_ratio_high=HIGH, policy_loss=keys)
    columns = (
        torch.tensor([[0.5, 0.5]]).log(),
        torch.tensor([[0.7, 0.8]]).log(),
        torch.tensor([[1.0, 3.0]]),
        torch.ones(1, 2),
    )
    loss, metrics = get_policy_loss_fn("clip_cov")(*columns, config=config)
    assert loss.item() == pytest.approx(-3 * 1.5 / 2)
    assert metrics["actor/pg_clipfrac"] == 0.5


def test_gmpo_bounds_the_log_ratio() -> None:
    """Log-ratios 0.4 and 0.6 with A = 1 (bound 0.5), -0.05 and -0.2 with A = -1 (bound -0.1)."""
    losses, moves = per_row("geo_mean", [0.1] * 4, [0.1 * math.exp(x) for x in (0.4, 0.6, -0.05, -0.2)], A)
    assert losses == pytest.approx([-math.exp(0.4), -math.exp(0.5), math.exp(-0.05), math.exp(-0.1)])
    assert moves == [True, False, True, False]


def test_cispo_bounds_the_weight() -> None:
    losses, moves = per_row("cispo", OLD, NEW, A)
    weights = [1.4, 1.5, 0.95, 0.9]
    assert losses == pytest.approx([-a * w * math.log(p) for a, w, p in zip(A, weights, NEW, strict=True)])
    assert all(moves)


def test_dppo_tv_bounds_the_move_of_the_probability() -> None:
    """Up by 0.4 and 0.6 with A = 1 (bound 0.5), down by 0.05 and 0.2 with A = -1 (bound 0.1)."""
    new = [0.7, 0.9, 0.25, 0.1]
    losses, moves = per_row("dppo_tv", [0.3] * 4, new, A)
    expected = [-(0.7 / 0.3) * math.log(0.7), 0.0, (0.25 / 0.3) * math.log(0.25), 0.0]
    assert losses == pytest.approx(expected, rel=1e-5)
    assert moves == [True, False, True, False]


def test_dppo_kl_bounds_the_divergence() -> None:
    """D(.3 || .7) = 0.339, D(.3 || .9) = 1.032 with A = 1 (bound 0.5); D(.3 || .2) = 0.028, D(.3 || .05) =
    0.324 with A = -1 (0.1).
    """
    losses, moves = per_row("dppo_kl", [0.3] * 4, [0.7, 0.9, 0.2, 0.05], A)
    assert losses == pytest.approx(
        [-(0.7 / 0.3) * math.log(0.7), 0.0, (0.2 / 0.3) * math.log(0.2), 0.0], rel=1e-5
    )
    assert moves == [True, False, True, False]


def test_a_reply_far_from_the_old_policy_has_a_ratio_of_e_to_the_10_at_most() -> None:
    """GSPO has no dual clip: with A = -1 nothing else bounds the loss. Mean log-ratios 9 and 50."""
    losses, moves = per_row("gspo", [math.exp(-10.0), math.exp(-51.0)], [math.exp(-1.0)] * 2, [-1.0, -1.0])
    assert losses == pytest.approx([math.exp(9.0), math.exp(10.0)], rel=1e-5)
    assert moves == [True, False]
