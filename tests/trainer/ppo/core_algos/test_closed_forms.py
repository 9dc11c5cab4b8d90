"""Same inputs as verl's functions of the same names take, same outputs as the papers' formulas say, to 1e-6,
on random batches.

The references are loops over rows and tokens in `reference.py`, in double precision. What differs from verl
on purpose (docs/upstream_map.md) is in no batch here: groups have two rows or more and unequal scores, rows
have a token.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from tests.trainer.ppo.core_algos import reference
from tests.trainer.ppo.core_algos.reference import Mask, Matrix
from verl.trainer.config import ActorConfig
from verl.trainer.config.model import PolicyLossConfig
from verl.trainer.ppo import core_algos
from verl.trainer.ppo.core_algos.aggregation import LOSS_AGG_MODES as MODES

LOW, HIGH = 0.1, 0.25
every_dtype = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])


@dataclass(frozen=True)
class Batch:
    """Groups of 2 to 5 rows in random order, with everything that a function asks for; all tensors
    `[bsz, response_len]`.
    """

    rewards: torch.Tensor
    mask: torch.Tensor
    index: np.ndarray
    values: torch.Tensor
    old: torch.Tensor
    new: torch.Tensor
    advantages: torch.Tensor
    squares: torch.Tensor
    weights: torch.Tensor
    greedy: torch.Tensor

    def plain(self) -> tuple[Matrix, Mask, list[int]]:
        """Rewards, mask and groups for the references."""
        return self.rewards.double().tolist(), self.mask.tolist(), self.index.tolist()


def batches(dtype: torch.dtype, holes: bool = True) -> Iterator[tuple[int, Batch]]:
    """Twenty random batches, each with its number; every third has replies with tokens in between that are
    not the agent's.
    """
    return ((seed, make(seed, dtype, holes and seed % 3 == 0)) for seed in range(20))


@cache
def make(seed: int, dtype: torch.dtype, holes: bool) -> Batch:
    """Rewards are sixteenths, some on every token and some on the last alone; ratios range from about 0.5 to
    2.
    """
    random = np.random.default_rng(seed)
    sizes = random.integers(2, 6, size=random.integers(1, 4))
    index = np.repeat(np.arange(len(sizes)), sizes)
    random.shuffle(index)
    count, width = len(index), int(random.integers(2, 7))
    lengths = random.integers(1, width + 1, size=count)
    mask = (np.arange(width) < lengths[:, None]).astype(np.int64)
    if holes:
        inside = (np.arange(width) > 0) & (np.arange(width) < lengths[:, None] - 1)
        mask[inside & (random.random((count, width)) < 0.4)] = 0
    while True:
        rewards = random.integers(-32, 33, size=(count, width)) / 16 * mask
        if seed % 2:
            rewards = rewards * (np.arange(width) == lengths[:, None] - 1)
        if all(len(set(rewards.sum(axis=1)[index == group])) > 1 for group in set(index)):
            break
    old = -random.uniform(0.2, 3.0, size=(count, width))
    numbers = {
        "rewards": rewards,
        "values": random.normal(size=(count, width)),
        "old": old,
        "new": np.minimum(old + 0.3 * random.normal(size=(count, width)), -0.05),
        "advantages": random.normal(size=(count, width)),
        "squares": random.uniform(0.0, 1.0, size=(count, width)),
        "weights": random.uniform(0.5, 2.0, size=(count, width)),
        "greedy": random.integers(-32, 33, size=count) / 16,
    }
    tensors = {name: torch.tensor(value, dtype=dtype) for name, value in numbers.items()}
    return Batch(mask=torch.tensor(mask), index=index, **tensors)


def same(
    ours: torch.Tensor | list[float], theirs: Matrix | list[float], seed: int, tolerance: float = 1e-6
) -> None:
    """Equal to 1e-6, relative or absolute."""
    found, expected = torch.as_tensor(ours, dtype=torch.float64), torch.tensor(theirs, dtype=torch.float64)
    assert found.shape == expected.shape
    torch.testing.assert_close(
        found, expected, rtol=tolerance, atol=tolerance, msg=lambda text: f"batch {seed}: {text}"
    )


OUTCOME: dict[str, tuple[Callable[..., Any], dict[str, Any], Callable[..., Matrix], dict[str, Any]]] = {
    "grpo": (core_algos.compute_grpo_outcome_advantage, {}, reference.grpo, {}),
    "dr_grpo": (
        core_algos.compute_grpo_outcome_advantage, {"norm_adv_by_std_in_grpo": False}, reference.grpo,
        {"by_std": False},
    ),
    "grpo_vectorized": (core_algos.compute_grpo_vectorized_outcome_advantage, {}, reference.grpo, {}),
    "grpo_passk": (core_algos.compute_grpo_passk_outcome_advantage, {}, reference.grpo_passk, {}),
    "grpo_passk, no division": (
        core_algos.compute_grpo_passk_outcome_advantage, {"norm_adv_by_std_in_grpo": False},
        reference.grpo_passk, {"by_std": False},
    ),
    "rloo": (core_algos.compute_rloo_outcome_advantage, {}, reference.rloo, {}),
    "rloo_vectorized": (core_algos.compute_rloo_vectorized_outcome_advantage, {}, reference.rloo, {}),
    "opo": (core_algos.compute_opo_outcome_advantage, {}, reference.opo, {}),
    "gpg": (core_algos.compute_gpg_outcome_advantage, {}, reference.gpg, {}),
    "gpg, f_norm": (core_algos.compute_gpg_outcome_advantage, {"f_norm": 2.5}, reference.gpg, {"f_norm": 2.5}),
    "reinforce_plus_plus_baseline": (
        core_algos.compute_reinforce_plus_plus_baseline_outcome_advantage, {},
        reference.reinforce_plus_plus_baseline, {},
    ),
}  # fmt: skip


@every_dtype
@pytest.mark.parametrize("name", OUTCOME)
def test_advantages_of_outcomes(name: str, dtype: torch.dtype) -> None:
    estimator, arguments, formula, constants = OUTCOME[name]
    for seed, batch in batches(dtype):
        advantages, returns = estimator(batch.rewards, batch.mask, batch.index, **arguments)
        same(advantages, formula(*batch.plain(), **constants), seed)
        assert torch.equal(returns, advantages)


@every_dtype
def test_remax(dtype: torch.dtype) -> None:
    for seed, batch in batches(dtype):
        rewards, mask, _ = batch.plain()
        advantages, returns = core_algos.compute_remax_outcome_advantage(
            batch.rewards, batch.greedy, batch.mask
        )
        same(advantages, reference.remax(rewards, mask, batch.greedy.tolist()), seed)
        same(returns, reference.to_go(rewards, mask), seed)


@every_dtype
def test_reinforce_plus_plus(dtype: torch.dtype) -> None:
    for seed, batch in batches(dtype):
        rewards, mask, _ = batch.plain()
        config = SimpleNamespace(gamma=1 - 0.02 * seed)
        advantages, returns = core_algos.compute_reinforce_plus_plus_outcome_advantage(
            batch.rewards, batch.mask, config=config
        )
        expected = reference.to_go(rewards, mask, config.gamma)
        same(returns, expected, seed)
        same(advantages, reference.whiten(expected, mask), seed)


@every_dtype
def test_gae(dtype: torch.dtype) -> None:
    for seed, batch in batches(dtype):
        rewards, mask, _ = batch.plain()
        values, gamma, lam = batch.values.double().tolist(), 1 - 0.02 * seed, 0.5 + 0.025 * seed
        advantages, returns = core_algos.compute_gae_advantage_return(
            batch.rewards, batch.values, batch.mask, gamma, lam
        )
        plain = reference.gae(rewards, values, mask, gamma, lam)
        same(advantages, reference.whiten(plain, mask), seed)
        same(
            returns,
            [
                [(a + v) * one for a, v, one in zip(*row, strict=True)]
                for row in zip(plain, values, mask, strict=True)
            ],
            seed,
        )


@every_dtype
@pytest.mark.parametrize("zero_tail", [True, False])
@pytest.mark.parametrize("weighted", [True, False])
def test_optimal_token_baselines(dtype: torch.dtype, zero_tail: bool, weighted: bool) -> None:
    """Without holes: there the one compares columns and the other the n-th tokens of the agent."""
    both = (
        core_algos.compute_optimal_token_baseline_advantage,
        core_algos.compute_multi_turn_optimal_token_baseline_advantage,
    )
    for seed, batch in batches(dtype, holes=False):
        weights = batch.weights if weighted else None
        plain_weights = batch.weights.double().tolist() if weighted else None
        expected = reference.token_baseline(
            *batch.plain(),
            batch.old.double().tolist(),
            batch.squares.double().tolist(),
            plain_weights,
            zero_tail,
        )
        arguments = {"rollout_is_weights": weights, "handle_zero_tail": zero_tail}
        for estimator in both:
            advantages, returns = estimator(
                batch.rewards, batch.mask, batch.index, batch.old, batch.squares, **arguments
            )
            same(advantages, expected, seed)
            same(returns, reference.to_go(*batch.plain()[:2]), seed)


CONFIG = ActorConfig(
    clip_ratio_low=LOW, clip_ratio_high=HIGH, clip_ratio_c=1.6, tau_pos=0.8, tau_neg=1.3,
    policy_loss=PolicyLossConfig(clip_cov_ratio=0.2, clip_cov_lb=0.05, clip_cov_ub=1.5, kl_cov_ratio=0.3, ppo_kl_coef=0.7),
)  # fmt: skip
# (log-probs, the same as constants, old log-probs, advantages, mask, mode) -> loss. What a paper detaches is
# read from the constants.
PolicyLoss = Callable[[Matrix, Matrix, Matrix, Matrix, Mask, str], float]


def by_token(formula: Callable[[float, float, float, float], float]) -> PolicyLoss:
    """A loss that looks at one token at a time: (log-prob, constant, old, advantage) -> loss."""

    def loss(new: Matrix, fixed: Matrix, old: Matrix, a: Matrix, mask: Mask, mode: str) -> float:
        return reference.aggregate(
            lambda i, t: formula(new[i][t], fixed[i][t], old[i][t], a[i][t]), mask, mode
        )

    return loss


def vanilla(new: float, fixed: float, old: float, a: float) -> float:
    """Clip-higher and dual clip."""
    return reference.dual_clipped_loss(math.exp(new - old), a, LOW, HIGH, CONFIG.clip_ratio_c)


def cispo(new: float, fixed: float, old: float, a: float) -> float:
    """arXiv 2506.13585, eq. 4-5."""
    return -reference.clip(math.exp(fixed - old), 1 - LOW, 1 + HIGH) * a * new


def gpg(new: float, fixed: float, old: float, a: float) -> float:
    """arXiv 2504.02546, eq. 5."""
    return -a * new


def sapo(new: float, fixed: float, old: float, a: float) -> float:
    """arXiv 2511.20347, eq. 5-6."""
    tau = CONFIG.tau_pos if a > 0 else CONFIG.tau_neg
    return -a * 4 / tau / (1 + math.exp(-tau * (math.exp(new - old) - 1)))


def dppo_tv(new: float, fixed: float, old: float, a: float) -> float:
    """arXiv 2602.04879: the probability may move by the bounds."""
    moved = math.exp(fixed) - math.exp(old)
    stays = moved <= HIGH if a > 0 else moved >= -LOW
    return -min(math.exp(fixed - old), CONFIG.clip_ratio_c) * a * new if stays else 0.0


def dppo_kl(new: float, fixed: float, old: float, a: float) -> float:
    """The same in the KL, and only for moves the way that the advantage pushes."""
    divergence, further = reference.binary_kl(math.exp(old), math.exp(fixed)), (fixed - old) * a > 0
    leaves = further and divergence > (HIGH if a > 0 else LOW)
    return 0.0 if leaves else -min(math.exp(fixed - old), CONFIG.clip_ratio_c) * a * new


def gspo(new: Matrix, fixed: Matrix, old: Matrix, a: Matrix, mask: Mask, mode: str) -> float:
    """arXiv 2507.18071, eq. 13-14; always the mean of each reply's mean."""
    shift = [
        reference.mean([fixed[i][t] - old[i][t] for t, one in enumerate(row) if one])
        for i, row in enumerate(mask)
    ]

    def token(i: int, t: int) -> float:
        return reference.clipped_loss(math.exp(shift[i] + new[i][t] - fixed[i][t]), a[i][t], LOW, HIGH)

    return reference.aggregate(token, mask, "seq-mean-token-mean")


def geo_mean(new: Matrix, fixed: Matrix, old: Matrix, a: Matrix, mask: Mask, mode: str) -> float:
    """arXiv 2507.20673, eq. 4 and 7: the geometric mean of the pessimistic ratios, times the mean
    advantage.
    """
    losses = []
    for i, row in enumerate(mask):
        ratios, own = [], [t for t, one in enumerate(row) if one]
        for t in own:
            x = new[i][t] - old[i][t]
            bounded = reference.clip(x, -LOW, HIGH)
            ratios.append(math.exp(min(x, bounded) if a[i][t] > 0 else max(x, bounded)))
        losses.append(-reference.mean([a[i][t] for t in own]) * math.prod(ratios) ** (1 / len(own)))
    return reference.mean(losses)


def clip_cov(new: Matrix, fixed: Matrix, old: Matrix, a: Matrix, mask: Mask, mode: str) -> float:
    """arXiv 2505.22617, eq. 11, in expectation over the draw."""
    keys = CONFIG.policy_loss
    found = set()
    for (i, t), covariance in reference.covariances(fixed, a, mask).items():
        ratio = math.exp(fixed[i][t] - old[i][t])
        free = -ratio * a[i][t] == reference.clipped_loss(ratio, a[i][t], LOW, HIGH)
        if keys.clip_cov_lb < covariance < keys.clip_cov_ub and free:
            found.add((i, t))
    drawn = max(1, int(keys.clip_cov_ratio * len(reference.tokens(mask))))
    chance = min(1.0, drawn / len(found)) if found else 0.0

    def token(i: int, t: int) -> float:
        stays = 1 - chance if (i, t) in found else 1.0
        return stays * reference.clipped_loss(math.exp(new[i][t] - old[i][t]), a[i][t], LOW, HIGH)

    return reference.aggregate(token, mask, mode)


def kl_cov(new: Matrix, fixed: Matrix, old: Matrix, a: Matrix, mask: Mask, mode: str) -> float:
    """arXiv 2505.22617, eq. 12-13."""
    covariance = reference.covariances(fixed, a, mask)
    places = max(1, int(CONFIG.policy_loss.kl_cov_ratio * len(covariance)))
    paying = sorted(covariance, key=lambda token: -covariance[token])[:places]

    def token(i: int, t: int) -> float:
        x = new[i][t] - old[i][t]
        return -math.exp(x) * a[i][t] + (CONFIG.policy_loss.ppo_kl_coef * abs(x) if (i, t) in paying else 0.0)

    return reference.aggregate(token, mask, mode)


POLICY_LOSSES: dict[str, PolicyLoss] = {
    "vanilla": by_token(vanilla),
    "cispo": by_token(cispo),
    "gpg": by_token(gpg),
    "dppo_tv": by_token(dppo_tv),
    "dppo_kl": by_token(dppo_kl),
    "sapo": lambda new, fixed, old, a, mask, mode: by_token(sapo)(
        new, fixed, old, a, mask, "seq-mean-token-mean"
    ),
    "gspo": gspo,
    "geo_mean": geo_mean,
    "clip_cov": clip_cov,
    "kl_cov": kl_cov,
}


def slope(loss: PolicyLoss, new: Matrix, *rest: Any) -> Matrix:
    """The gradient by central differences, constants held."""
    gradient, step = [[0.0] * len(row) for row in new], 1e-5
    for i, row in enumerate(new):
        for t in range(len(row)):
            sides = [
                [[x + sign * step * ((j, u) == (i, t)) for u, x in enumerate(r)] for j, r in enumerate(new)]
                for sign in (1, -1)
            ]
            gradient[i][t] = (loss(sides[0], new, *rest) - loss(sides[1], new, *rest)) / (2 * step)
    return gradient


@every_dtype
@pytest.mark.parametrize("name", POLICY_LOSSES)
def test_policy_losses_and_their_gradients(name: str, dtype: torch.dtype) -> None:
    for seed, batch in batches(dtype):
        mode = "seq-mean-token-mean" if name == "gspo" else MODES[seed % len(MODES)]
        log_prob = batch.new.clone().requires_grad_()
        loss, _ = core_algos.get_policy_loss_fn(name)(
            batch.old, log_prob, batch.advantages, batch.mask, mode, CONFIG
        )
        (gradient,) = torch.autograd.grad(loss, log_prob)
        new, old, advantages = (x.double().tolist() for x in (batch.new, batch.old, batch.advantages))
        rest = (old, advantages, batch.mask.tolist(), mode)
        same([loss.item()], [POLICY_LOSSES[name](new, new, *rest)], seed)
        if dtype == torch.float64 and seed < 8:
            same(gradient, slope(POLICY_LOSSES[name], new, *rest), seed)


def test_metrics_of_the_clipped_loss() -> None:
    for seed, batch in batches(torch.float64):
        arguments = (batch.old, batch.new, batch.advantages, batch.mask)
        rows = zip(*(x.flatten().tolist() for x in arguments), strict=True)
        ratios = [(math.exp(new - old), a) for old, new, a, one in rows if one]
        clipped = [a * r > a * reference.clip(r, 1 - LOW, 1 + HIGH) for r, a in ratios]
        bounded = [
            a < 0 and reference.clipped_loss(r, a, LOW, HIGH) > -CONFIG.clip_ratio_c * a for r, a in ratios
        ]
        expected = [
            reference.mean(clipped),
            -reference.mean([math.log(r) for r, _ in ratios]),
            reference.mean(bounded),
        ]
        _, metrics = core_algos.compute_policy_loss_vanilla(*arguments, config=CONFIG)
        same(
            [metrics[f"actor/{name}"] for name in ("pg_clipfrac", "ppo_kl", "pg_clipfrac_lower")],
            expected,
            seed,
        )
        older = core_algos.compute_policy_loss(
            *arguments, cliprange_low=LOW, cliprange_high=HIGH, clip_ratio_c=CONFIG.clip_ratio_c
        )
        same([x.item() for x in older[1:]], expected, seed)


@every_dtype
@pytest.mark.parametrize("mode", MODES)
def test_aggregation(mode: str, dtype: torch.dtype) -> None:
    for seed, batch in batches(dtype):
        values, mask = batch.values.double().tolist(), batch.mask.tolist()
        for constant in (None, 7.0):
            expected = reference.aggregate(lambda i, t, values=values: values[i][t], mask, mode, constant)
            same(
                [core_algos.agg_loss(batch.values, batch.mask, mode, loss_scale_factor=constant).item()],
                [expected],
                seed,
            )


@every_dtype
@pytest.mark.parametrize("mode", MODES)
def test_value_loss(mode: str, dtype: torch.dtype) -> None:
    for seed, batch in batches(dtype):
        mask = batch.mask.tolist()
        new, returns, old = (x.double().tolist() for x in (batch.advantages, batch.weights, batch.values))
        errors, clipped = [[0.0] * len(row) for row in mask], 0
        for i, t in reference.tokens(mask):
            free = (new[i][t] - returns[i][t]) ** 2
            bounded = (reference.clip(new[i][t], old[i][t] - LOW, old[i][t] + LOW) - returns[i][t]) ** 2
            errors[i][t], clipped = max(free, bounded) / 2, clipped + (bounded > free)
        loss, share = core_algos.compute_value_loss(
            batch.advantages, batch.weights, batch.values, batch.mask, LOW, mode
        )
        expected = reference.aggregate(lambda i, t, errors=errors: errors[i][t], mask, mode)
        same([loss.item(), share.item()], [expected, clipped / len(reference.tokens(mask))], seed)


@every_dtype
@pytest.mark.parametrize("kind", ["kl", "k1", "abs", "mse", "k2", "low_var_kl", "k3"])
def test_kl_estimators(kind: str, dtype: torch.dtype) -> None:
    for seed, batch in batches(dtype):
        new, ref = batch.new.double().tolist(), batch.old.double().tolist()
        expected = [
            [reference.kl(p, q, kind) for p, q in zip(*rows, strict=True)]
            for rows in zip(new, ref, strict=True)
        ]
        same(core_algos.kl_penalty(batch.new, batch.old, kind), expected, seed)
        same(core_algos.kl_penalty_forward(batch.new, batch.old, kind), expected, seed)
        log_prob = batch.new.clone().requires_grad_()
        straight_through = core_algos.kl_penalty(log_prob, batch.old, f"{kind}+")
        (gradient,) = torch.autograd.grad(straight_through.sum(), log_prob)
        same(straight_through.detach(), expected, seed)
        same(
            gradient,
            [[p - q for p, q in zip(*rows, strict=True)] for rows in zip(new, ref, strict=True)],
            seed,
        )


@every_dtype
def test_kl_in_the_reward(dtype: torch.dtype) -> None:
    for seed, batch in batches(dtype):
        columns = (x.double().tolist() for x in (batch.rewards, batch.new, batch.old))
        expected = [
            [r - 0.3 * (p - q) for r, p, q in zip(*rows, strict=True)] for rows in zip(*columns, strict=True)
        ]
        same(core_algos.compute_rewards(batch.rewards, batch.new, batch.old, 0.3), expected, seed)


def test_kl_controllers() -> None:
    """arXiv 1909.08593, section 2.2: `e = clip(KL / target - 1, +-0.2)`, `beta <- beta (1 + K e)`, K the
    steps over the horizon.
    """
    random = np.random.default_rng(0)
    for seed in range(20):
        start, target, horizon = (
            random.uniform(0.01, 1),
            random.uniform(0.5, 5),
            int(random.integers(100, 10_000)),
        )
        adaptive = core_algos.AdaptiveKLController(init_kl_coef=start, target_kl=target, horizon=horizon)
        fixed, coefficient = core_algos.FixedKLController(start), start
        for measured in (target * random.uniform(0, 3, size=5)).tolist():
            steps = int(random.integers(1, 60))
            coefficient += coefficient * min(max(measured / target - 1, -0.2), 0.2) * steps / horizon
            adaptive.update(measured, steps)
            fixed.update(measured, steps)
        same([adaptive.value, fixed.value], [coefficient, start], seed, tolerance=1e-12)


@every_dtype
def test_entropy_and_masked_means(dtype: torch.dtype) -> None:
    for seed, batch in batches(dtype):
        mask, values = batch.mask.tolist(), batch.values.double().tolist()
        kept = [values[i][t] for i, t in reference.tokens(mask)]
        found = [
            core_algos.masked_sum(batch.values, batch.mask).item(),
            core_algos.masked_mean(batch.values, batch.mask).item(),
        ]
        same(found, [math.fsum(kept), reference.mean(kept)], seed)
        logits = torch.stack([batch.values, batch.advantages, 3 * batch.weights], dim=-1)
        plain = logits.double().tolist()
        for mode in MODES:
            expected = reference.aggregate(
                lambda i, t, plain=plain: reference.entropy(plain[i][t]), mask, mode
            )
            same([core_algos.compute_entropy_loss(logits, batch.mask, mode).item()], [expected], seed)
