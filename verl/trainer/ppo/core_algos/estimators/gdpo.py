"""GDPO: normalise every reward separately before they are added, so that their scales do not
matter.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from verl.trainer.config.algorithm import EstimatorConfig
from verl.trainer.plan.registry import register_adv_est
from verl.trainer.ppo.core_algos.checks import check_columns, numbers
from verl.trainer.ppo.core_algos.estimators.grpo import group_relative
from verl.trainer.ppo.core_algos.estimators.outcome import ScoredUnits, real_rows, units_without_signal
from verl.trainer.ppo.core_algos.estimators.whitening import whiten_outcomes
from verl.utils.names import own_key


@register_adv_est(
    "gdpo",
    reads=("gdpo_reward_keys", "gdpo_reward_weights", "norm_adv_by_std_in_grpo"),
    learns_from="algorithm.gdpo_reward_keys",
    whole_batch=True,
)
def compute_gdpo_outcome_advantage(
    token_level_rewards: torch.Tensor,
    response_mask: torch.Tensor,
    index: np.ndarray,
    epsilon: float = 1e-6,
    norm_adv_by_std_in_grpo: bool = True,
    config: EstimatorConfig = None,
    non_tensor_batch: Mapping[str, np.ndarray] | None = None,
    batch: Any = None,
    *,
    traj_index: np.ndarray | None = None,
    policy_index: np.ndarray | None = None,
    weights: np.ndarray | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return `sum_k w_k (r_k - mean_g r_k) / (std_g r_k + epsilon)`, whitened over the tokens of each policy
    (arXiv 2601.05242).

    The rewards `r_k` are columns of the samples: `team_reward`, `local_reward`, ..., or named terms of reward
    functions. In a group of equal rewards `r_k` the term of that reward is 0; rows whose terms are all 0 for
    this reason remain exactly 0 after the whitening.

    Keys: `algorithm.gdpo_reward_keys`, `gdpo_reward_weights`, `norm_adv_by_std_in_grpo`, `group_by`,
        `statistics_over`, `call_weighting`, `singleton`.
    Use when: several rewards differ in scale or frequency (format and accuracy, team and local).
    Fails when: a penalty or the KL must be included: only the named columns are read, not the token rewards.

    Args:
        token_level_rewards: `[bsz, response_len]`, the only reward if there are no columns.
        non_tensor_batch: columns `[bsz]` by name; without them or config the token rewards are used, as in
            verl.
        batch: unused, kept for verl's signature.
        others: see `core_algos.estimators`.

    Raises:
        ValueError: no reward keys, a key that samples lack, or a wrong number of weights.
    """
    check_columns(
        response_mask, index=index, traj_index=traj_index, policy_index=policy_index, weights=weights
    )
    rewards = [token_level_rewards]
    factors = [1.0]
    if config is not None and non_tensor_batch is not None:
        rewards, factors = _named_rewards(config, non_tensor_batch, response_mask)
    total = np.zeros(len(response_mask))
    no_signal = np.ones(len(response_mask), dtype=bool)
    for reward, factor in zip(rewards, factors, strict=True):
        scored = ScoredUnits.of(reward, response_mask, index, traj_index, weights)
        relative = np.where(
            scored.valid, group_relative(scored, epsilon, norm_adv_by_std_in_grpo, config), 0.0
        )
        no_term = units_without_signal(scored, scored.stats(), config) | (factor == 0)
        total += factor * (relative if scored.unit is None else relative[scored.unit])
        no_signal &= no_term if scored.unit is None else no_term[scored.unit]
    advantages = whiten_outcomes(total, no_signal, token_level_rewards, response_mask, policy_index, weights)
    return advantages, advantages


def _named_rewards(
    config: EstimatorConfig, columns: Mapping[str, np.ndarray], response_mask: torch.Tensor
) -> tuple[list[torch.Tensor], list[float]]:
    """Return each named column as token rewards `[bsz, response_len]`, and its weight."""
    keys = own_key(config, "gdpo_reward_keys", None)
    if not keys:
        raise ValueError(
            "adv_estimator=gdpo needs algorithm.gdpo_reward_keys: fields of the samples, which "
            f"have {sorted(columns)}"
        )
    if missing := [key for key in keys if key not in columns]:
        raise ValueError(
            f"algorithm.gdpo_reward_keys names {missing}, which samples do not have; they have "
            f"{sorted(columns)}"
        )
    weights = own_key(config, "gdpo_reward_weights", None)
    factors = [1.0] * len(keys) if weights is None else [float(weight) for weight in weights]
    if len(factors) != len(keys):
        raise ValueError(
            f"algorithm.gdpo_reward_weights has {len(factors)} entries for {len(keys)} "
            "gdpo_reward_keys; give one each"
        )
    valid = real_rows(response_mask).cpu().numpy()
    rewards = []
    for key in keys:
        scores = numbers(key, columns[key], valid)
        tokens = torch.zeros(response_mask.shape, dtype=torch.float64, device=response_mask.device)
        tokens[:, 0] = torch.as_tensor(np.where(valid, scores, 0.0), device=tokens.device)
        rewards.append(tokens)
    return rewards, factors
