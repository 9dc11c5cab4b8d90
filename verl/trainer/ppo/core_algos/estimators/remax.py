"""ReMax: the baseline of a reply is the reward of the greedy reply to the same prompt."""

from __future__ import annotations

from typing import Any

import torch

from verl.trainer.config.algorithm import EstimatorConfig
from verl.trainer.plan.registry import register_adv_est
from verl.trainer.ppo.core_algos.checks import check_columns, check_finite, check_tokens, numbers


@register_adv_est("remax", reads=(), grouped=False)
def compute_remax_outcome_advantage(
    token_level_rewards: torch.Tensor,
    reward_baselines: torch.Tensor,
    response_mask: torch.Tensor,
    config: EstimatorConfig = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return `A_t = sum_(t' >= t) r_t' - s(greedy)` (arXiv 2310.10505). Both results are 0 where masked.

    There are no groups and no normalisation: every row has its own baseline, so that single rows and equal
    scores are no special cases. A reply with the outcome reward of the greedy one has advantage 0 at every
    token.

    The greedy reply is that of a greedy episode of the task; for the candidates of a tree with
    `rollout.tree.returns=step` it is a greedy reply to their call, rewarded for its own action like them.

    Keys: `algorithm.call_weighting` (in the loss only).
    Use when: one reply per prompt is sampled, and an additional greedy reply is affordable.
    Fails when: the scale of rewards differs between tasks, since they are not normalized.

    Args:
        reward_baselines: `[bsz]` reward of the greedy reply.
        others: see `core_algos.estimators`.

    Returns:
        advantages and returns (reward to go), `[bsz, response_len]`.

    Raises:
        ValueError: no baselines.
    """
    if reward_baselines is None:
        raise ValueError(
            "adv_estimator=remax needs reward_baselines: the reward of each prompt's greedy reply"
        )
    check_tokens(response_mask, token_level_rewards=token_level_rewards)
    check_columns(response_mask, reward_baselines=reward_baselines)
    check_finite("token_level_rewards", token_level_rewards, response_mask)
    mask = response_mask.bool()
    baselines = numbers("reward_baselines", reward_baselines, mask.any(dim=-1).cpu().numpy())
    dtype = torch.promote_types(token_level_rewards.dtype, torch.float32)
    rewards = torch.where(mask, token_level_rewards.detach().to(dtype), 0.0)
    returns = rewards.flip(-1).cumsum(-1).flip(-1)
    baseline = torch.as_tensor(baselines, dtype=dtype, device=mask.device).unsqueeze(-1)
    return torch.where(mask, returns - baseline, 0.0), torch.where(mask, returns, 0.0)
