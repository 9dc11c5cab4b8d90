"""The papers' formulas as slow loops over rows and tokens in plain floats: what the vectorised code is held
against.

A matrix is a list of rows. Tokens of a row are those whose mask is 1; what stands elsewhere is never read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

Matrix = list[list[float]]
Mask = list[list[int]]
TokenLoss = Callable[[int, int], float]


def mean(values: Sequence[float]) -> float:
    """Arithmetic mean; 0 of nothing."""
    return math.fsum(values) / len(values) if values else 0.0


def deviation(values: Sequence[float]) -> float:
    """Standard deviation with n - 1 in the denominator."""
    centre = mean(values)
    return math.sqrt(math.fsum((v - centre) ** 2 for v in values) / (len(values) - 1))


def clip(value: float, lowest: float, highest: float) -> float:
    """The nearest number of the interval."""
    return lowest if value < lowest else highest if value > highest else value


def tokens(mask: Mask) -> list[tuple[int, int]]:
    """Row and column of every token."""
    return [(i, t) for i, row in enumerate(mask) for t, one in enumerate(row) if one]


def spread(rows: Sequence[float], mask: Mask) -> Matrix:
    """One number a row on each of its tokens."""
    return [[rows[i] if one else 0.0 for one in row] for i, row in enumerate(mask)]


def scores(rewards: Matrix, mask: Mask) -> list[float]:
    """Sum of each row's rewards."""
    return [
        math.fsum(r for r, one in zip(row, own, strict=True) if one)
        for row, own in zip(rewards, mask, strict=True)
    ]


def groups_of(index: Sequence[int]) -> list[list[int]]:
    """For each row, the rows of its group."""
    return [[j for j, other in enumerate(index) if other == own] for own in index]


def to_go(rewards: Matrix, mask: Mask, gamma: float = 1.0) -> Matrix:
    """`G_t = r_t + gamma r_(t+1) + gamma^2 r_(t+2) + ...` over the tokens of a row, as the double sum
    it is.
    """
    out = [[0.0] * len(row) for row in mask]
    for i, t in tokens(mask):
        later = [u for u in range(t, len(mask[i])) if mask[i][u]]
        out[i][t] = math.fsum(gamma**k * rewards[i][u] for k, u in enumerate(later))
    return out


def whiten(values: Matrix, mask: Mask, weights: Sequence[float] | None = None) -> Matrix:
    """Zero mean and unit (unbiased) variance over all tokens; with weights of rows, those of the weighted
    tokens.
    """
    own = [1.0] * len(mask) if weights is None else list(weights)
    x, w = [values[i][t] for i, t in tokens(mask)], [own[i] for i, _ in tokens(mask)]
    total = math.fsum(w)
    centre = math.fsum(a * b for a, b in zip(x, w, strict=True)) / total
    square = math.fsum(b * (a - centre) ** 2 for a, b in zip(x, w, strict=True))
    variance = square / (total - math.fsum(b * b for b in w) / total)
    out = [[0.0] * len(row) for row in mask]
    for i, t in tokens(mask):
        out[i][t] = (values[i][t] - centre) / math.sqrt(variance + 1e-8) if own[i] else 0.0
    return out


# Advantages: (token rewards, mask, group of each row, ...) -> advantages.


def grpo(rewards: Matrix, mask: Mask, index: Sequence[int], by_std: bool = True) -> Matrix:
    """arXiv 2402.03300, section 4.1.2; without the division arXiv 2503.20783."""
    s, out = scores(rewards, mask), []
    for i, mates in enumerate(groups_of(index)):
        others = [s[j] for j in mates]
        out.append((s[i] - mean(others)) / ((deviation(others) + 1e-6) if by_std else 1.0))
    return spread(out, mask)


def grpo_passk(rewards: Matrix, mask: Mask, index: Sequence[int], by_std: bool = True) -> Matrix:
    """arXiv 2503.19595: what the best of a group adds to the second best."""
    s, out = scores(rewards, mask), [0.0] * len(mask)
    for i, mates in enumerate(groups_of(index)):
        others = [s[j] for j in mates]
        margin = s[i] - max(s[j] for j in mates if j != i)
        out[i] = max(margin, 0.0) / ((deviation(others) + 1e-6) if by_std else 1.0)
    return spread(out, mask)


def rloo(rewards: Matrix, mask: Mask, index: Sequence[int]) -> Matrix:
    """arXiv 2402.14740, section 3.3."""
    s = scores(rewards, mask)
    return spread(
        [s[i] - mean([s[j] for j in mates if j != i]) for i, mates in enumerate(groups_of(index))], mask
    )


def opo(rewards: Matrix, mask: Mask, index: Sequence[int]) -> Matrix:
    """arXiv 2505.23585: the baseline is the mean over tokens of the score of the reply that each
    belongs to.
    """
    s = scores(rewards, mask)
    return spread(
        [
            s[i] - mean([s[j] for j in mates for one in mask[j] if one])
            for i, mates in enumerate(groups_of(index))
        ],
        mask,
    )


def gpg(rewards: Matrix, mask: Mask, index: Sequence[int], f_norm: float = 1.0) -> Matrix:
    """arXiv 2504.02546, eq. 6-7, with verl's reading of alpha: rows over rows that have a score."""
    s = scores(rewards, mask)
    alpha = len(s) / max(1, sum(score != 0 for score in s))
    return spread(
        [alpha * (s[i] - mean([s[j] for j in mates])) / f_norm for i, mates in enumerate(groups_of(index))],
        mask,
    )


def remax(rewards: Matrix, mask: Mask, greedy: Sequence[float]) -> Matrix:
    """arXiv 2310.10505, algorithm 1."""
    future = to_go(rewards, mask)
    return [
        [future[i][t] - greedy[i] if one else 0.0 for t, one in enumerate(row)] for i, row in enumerate(mask)
    ]


def reinforce_plus_plus_baseline(rewards: Matrix, mask: Mask, index: Sequence[int]) -> Matrix:
    """arXiv 2501.03262: the group's mean is the baseline, the batch's deviation the scale."""
    return whiten(grpo(rewards, mask, index, by_std=False), mask)


def gae(rewards: Matrix, values: Matrix, mask: Mask, gamma: float, lam: float) -> Matrix:
    """arXiv 1506.02438, eq. 16, before whitening: the sum over all later temporal differences."""
    out = [[0.0] * len(row) for row in mask]
    for i, t in tokens(mask):
        steps = [u for u in range(t, len(mask[i])) if mask[i][u]]
        ahead = [values[i][u] for u in steps[1:]] + [0.0]
        deltas = [rewards[i][u] + gamma * v - values[i][u] for u, v in zip(steps, ahead, strict=True)]
        out[i][t] = math.fsum((gamma * lam) ** k * delta for k, delta in enumerate(deltas))
    return out


def token_baseline(
    rewards: Matrix,
    mask: Mask,
    index: Sequence[int],
    log_probs: Matrix,
    squares: Matrix,
    weights: Matrix | None,
    zero_tail: bool,
) -> Matrix:
    """arXiv 2602.07078: at each place, the mean of the rewards to go weighted by the gradient's squared norm
    so far.

    Places are counted in tokens; in right-padded rows they are columns.
    """
    future, out = to_go(rewards, mask), [[0.0] * len(row) for row in mask]
    places = [[t for t, one in enumerate(row) if one] for row in mask]

    energy: Matrix = [[] for _ in mask]
    for j, t in tokens(mask):
        term = 1 - 2 * math.exp(log_probs[j][t]) + squares[j][t]
        energy[j].append((energy[j] or [0.0])[-1] + (term if weights is None else term * weights[j][t] ** 2))
    for i, mates in enumerate(groups_of(index)):
        for place, t in enumerate(places[i]):
            alive = [j for j in mates if len(places[j]) > place]
            top = math.fsum(future[j][places[j][place]] * energy[j][place] for j in alive)
            baseline = top / (math.fsum(energy[j][place] for j in alive) + 1e-8)
            out[i][t] = future[i][t] - (0.0 if zero_tail and len(alive) == 1 else baseline)
    return out


# Losses: a number from a loss a token, or from the log-probs.


def aggregate(loss: TokenLoss, mask: Mask, mode: str, constant: float | None = None) -> float:
    """The five ways to one number; `constant` is the divisor of `seq-mean-token-sum-norm`, by default the
    width.
    """
    rows = [[loss(i, t) for t, one in enumerate(row) if one] for i, row in enumerate(mask) if any(row)]
    if mode == "token-mean":
        return mean([x for row in rows for x in row])
    if mode == "token-sum":
        return math.fsum(x for row in rows for x in row)
    if mode == "seq-mean-token-mean":
        return mean([mean(row) for row in rows])
    total = mean([math.fsum(row) for row in rows])
    return total if mode == "seq-mean-token-sum" else total / (len(mask[0]) if constant is None else constant)


def clipped_loss(ratio: float, advantage: float, low: float, high: float) -> float:
    """arXiv 1707.06347, eq. 7, with a bound for each side (arXiv 2503.14476)."""
    return -min(ratio * advantage, clip(ratio, 1 - low, 1 + high) * advantage)


def dual_clipped_loss(ratio: float, advantage: float, low: float, high: float, constant: float) -> float:
    """arXiv 1912.09729, eq. 5."""
    loss = clipped_loss(ratio, advantage, low, high)
    return min(loss, -constant * advantage) if advantage < 0 else loss


def binary_kl(old: float, new: float) -> float:
    """KL of "this token or another" under two probabilities of the token (arXiv 2602.04879)."""
    return old * math.log(old / new) + (1 - old) * math.log((1 - old) / (1 - new))


def covariances(log_probs: Matrix, advantages: Matrix, mask: Mask) -> dict[tuple[int, int], float]:
    """Of each token: its part of the covariance of advantage and log-prob (arXiv 2505.22617, eq. 9)."""
    of_a, of_p = (
        mean([advantages[i][t] for i, t in tokens(mask)]),
        mean([log_probs[i][t] for i, t in tokens(mask)]),
    )
    return {(i, t): (advantages[i][t] - of_a) * (log_probs[i][t] - of_p) for i, t in tokens(mask)}


def kl(log_prob: float, ref: float, kind: str) -> float:
    """http://joschu.net/blog/kl-approx.html: k1, k2, k3, and |k1|; k3 is cut at 10."""
    ratio = math.exp(ref - log_prob)
    formulas = {
        "k1": -math.log(ratio),
        "k2": math.log(ratio) ** 2 / 2,
        "k3": min(10.0, ratio - 1 - math.log(ratio)),
    }
    names = {"kl": "k1", "mse": "k2", "low_var_kl": "k3"}
    return abs(formulas["k1"]) if kind == "abs" else formulas[names.get(kind, kind)]


def entropy(logits: Sequence[float]) -> float:
    """Of the softmax, in nats."""
    total = math.fsum(math.exp(x) for x in logits)
    return -math.fsum(math.exp(x) / total * math.log(math.exp(x) / total) for x in logits)
