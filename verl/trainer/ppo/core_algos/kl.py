"""KL divergence from the reference: estimators per token, the penalty in the reward, and controllers
of its coefficient.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from verl.protocol import DataProto
from verl.trainer.config.names import KL_ESTIMATORS
from verl.trainer.ppo.core_algos.aggregation import masked_mean


def kl_penalty(logprob: torch.Tensor, ref_logprob: torch.Tensor, kl_penalty: str) -> torch.Tensor:
    """Estimate KL(pi || ref) per token from samples of pi (http://joschu.net/blog/kl-approx.html):
    `[bsz, response_len]`.

        kl, k1          x = log_prob - ref_log_prob
        abs             |x|
        mse, k2         x^2 / 2
        low_var_kl, k3  exp(-x) - 1 + x, at most 10

    A trailing `+` (`k1+`, ...) keeps the value and uses k2's gradient, which is unbiased.

    Keys: `actor.kl_loss_coef`, `actor.kl_loss_type`; `algorithm.kl_ctrl.kl_coef`,
    `algorithm.kl_penalty`.
    Use when: the policy must stay near the reference: k3 in the loss (never negative, low variance), k1 in
    the reward (unbiased).
    Fails when: k1 is the loss (its expected gradient is 0), or the policy is far off: k3's cut at 10 has no
    gradient.
    """
    value = kl_penalty_forward(logprob, ref_logprob, kl_penalty.removesuffix("+"))
    if not kl_penalty.endswith("+"):
        return value
    surrogate = 0.5 * (logprob - ref_logprob).square()
    return surrogate - surrogate.detach() + value.detach()


def kl_penalty_forward(logprob: torch.Tensor, ref_logprob: torch.Tensor, kl_penalty: str) -> torch.Tensor:
    """Return `kl`/`k1`: log-ratio; `abs`; `mse`/`k2`: half its square; `low_var_kl`/`k3`:
    `exp(-x) - 1 + x`, clamped to +-10.

    Raises ValueError for an unknown estimator, or if shapes differ.
    """
    if logprob.shape != ref_logprob.shape:
        raise ValueError(
            f"logprob {tuple(logprob.shape)} and ref_logprob {tuple(ref_logprob.shape)} differ in shape"
        )
    if kl_penalty in ("kl", "k1"):
        return logprob - ref_logprob
    if kl_penalty == "abs":
        return (logprob - ref_logprob).abs()
    if kl_penalty in ("mse", "k2"):
        return 0.5 * (logprob - ref_logprob).square()
    if kl_penalty in ("low_var_kl", "k3"):
        log_ratio = torch.clamp(ref_logprob - logprob, min=-20.0, max=20.0)
        return torch.clamp(torch.exp(log_ratio) - log_ratio - 1, min=-10.0, max=10.0)
    raise ValueError(f"unknown KL estimator {kl_penalty!r}; expected one of {KL_ESTIMATORS}")


def compute_rewards(
    token_level_scores: torch.Tensor, old_log_prob: torch.Tensor, ref_log_prob: torch.Tensor, kl_ratio: float
) -> torch.Tensor:
    """Return `r_t - beta (log_prob - ref_log_prob)`: token rewards minus the KL penalty (arXiv 1909.08593,
    eq. 2), `[bsz, response_len]`.

    Keys: `algorithm.kl_ctrl.kl_coef`.
    Use when: the KL penalty should be part of token-level credit: token returns (reinforce_plus_plus, gae)
    contain it at its token.
    Fails when: the estimator reads the score of a whole reply: its KL is then a sum over tokens, and long
    replies are penalized more.
    """
    return token_level_scores - (old_log_prob - ref_log_prob) * kl_ratio


class FixedKLController:
    """Constant coefficient: `beta_(k+1) = beta_k` (the fixed penalty of arXiv 1707.06347, section 4).

    Keys: `algorithm.kl_ctrl.kl_coef`.
    Use when: in doubt, and whenever runs are compared.
    Fails when: the scale of rewards changes during a run: the relative strength of the penalty changes with
    it.
    """

    def __init__(self, kl_coef: float) -> None:
        self.value = kl_coef

    def update(self, current_kl: float, n_steps: int) -> None:
        """Do nothing."""


class AdaptiveKLController:
    """Coefficient that is adapted to a target KL (arXiv 1909.08593, section 2.2).

        e = clip(KL / target - 1, -0.2, 0.2),  beta <- beta (1 + e min(n / horizon, 1)),  n the sequences of the step

    The gain `n / horizon` is at most 1, so that a step changes beta by at most a fifth: with a gain above 5,
    a step below the target would make beta negative. Every policy has its own controller.

    Keys: `algorithm.kl_ctrl.kl_coef`, `algorithm.kl_ctrl.target_kl`,
    `algorithm.kl_ctrl.horizon`.
    Use when: the allowed KL is known, but not the coefficient that keeps it.
    Fails when: the horizon is as short as the sequences of a step: the coefficient oscillates; or long: it
    adapts too slowly.
    """

    def __init__(self, init_kl_coef: float, target_kl: float, horizon: int) -> None:
        self.value = init_kl_coef
        self.target = target_kl
        self.horizon = horizon

    def update(self, current_kl: float, n_steps: int) -> None:
        """Multiply the coefficient by
        `1 + clip(current / target - 1, +-0.2) * min(n_steps / horizon, 1)`.
        """
        error = float(np.clip(current_kl / self.target - 1, -0.2, 0.2))
        self.value *= 1 + error * min(n_steps / self.horizon, 1)


def get_kl_controller(kl_ctrl: Any) -> FixedKLController | AdaptiveKLController:
    """Return the controller of `algorithm.kl_ctrl`.

    Raises:
        AssertionError: an adaptive controller without a positive horizon.
        NotImplementedError: an unknown type.
    """
    if kl_ctrl.type == "fixed":
        return FixedKLController(kl_ctrl.kl_coef)
    if kl_ctrl.type == "adaptive":
        assert kl_ctrl.horizon > 0, f"algorithm.kl_ctrl.horizon must be larger than 0, got {kl_ctrl.horizon}"
        return AdaptiveKLController(kl_ctrl.kl_coef, kl_ctrl.target_kl, kl_ctrl.horizon)
    raise NotImplementedError(f"algorithm.kl_ctrl.type={kl_ctrl.type!r}: expected fixed or adaptive")


def apply_kl_penalty(
    data: DataProto, kl_ctrl: FixedKLController | AdaptiveKLController, kl_penalty: str = "kl"
) -> tuple[DataProto, dict[str, float]]:
    """Set `token_level_rewards = token_level_scores - coefficient * KL(old || ref)` and update the
    KL controller.

    Needs `old_log_probs` and `ref_log_prob`. Return the batch and the metrics
    `actor/reward_kl_penalty` and `..._coeff`.
    """
    mask = data.batch["response_mask"]
    # A reward has no gradient, which is what a trailing `+` changes.
    estimator = kl_penalty.removesuffix("+")
    kld = kl_penalty_forward(data.batch["old_log_probs"], data.batch["ref_log_prob"], estimator) * mask
    coefficient = kl_ctrl.value
    data.batch["token_level_rewards"] = data.batch["token_level_scores"] - coefficient * kld
    real = mask.any(dim=1)
    per_row = (kld.sum(dim=1) / mask.sum(dim=1).clamp(min=1))[real]
    current = per_row.mean().item() if len(per_row) else masked_mean(kld, mask).item()
    kl_ctrl.update(current_kl=current, n_steps=int(real.sum().item()))
    return data, {"actor/reward_kl_penalty": current, "actor/reward_kl_penalty_coeff": coefficient}
