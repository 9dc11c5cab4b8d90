"""GAE: discounted sums of temporal-difference errors of a critic."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from verl.trainer.config.algorithm import EstimatorConfig
from verl.trainer.plan.registry import register_adv_est
from verl.trainer.ppo.core_algos.checks import check_columns, check_finite, check_tokens
from verl.trainer.ppo.core_algos.estimators.chains import after, build_chains, chain_rows, discounted_sums
from verl.trainer.ppo.core_algos.estimators.whitening import whiten
from verl.utils.names import own_key


@register_adv_est("gae", reads=("gamma", "lam", "gae"), grouped=False, whole_batch=True)
def compute_gae_advantage_return(
    token_level_rewards: torch.Tensor,
    values: torch.Tensor,
    response_mask: torch.Tensor,
    gamma: float,
    lam: float,
    *,
    policy_index: np.ndarray | None = None,
    traj_uid: np.ndarray | None = None,
    agent_index: np.ndarray | None = None,
    turn_index: np.ndarray | None = None,
    weights: np.ndarray | None = None,
    level: str = "token",
    config: EstimatorConfig = None,
    reply_mask: torch.Tensor | None = None,
    repeated_reward: np.ndarray | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return `A_t = sum_l (gamma lam)^l delta_(t+l)`, `delta_t = r_t + gamma V_(t+1) - V_t`
    (arXiv 1506.02438, eq. 16).

    `level="token"`: an action is a token, a reply is a trajectory; masked tokens inside a reply are skipped.
    `level="turn"`: an action is a whole reply, its value that of its first unmasked token, its reward the sum
    of its token rewards; an agent's calls in one episode are a trajectory, and a reply bootstraps from the
    next call. Every candidate of a call (equal `turn_index`) is followed by the mean over the candidates of
    the next call. Advantages are whitened over the actions of each policy: tokens, or replies. Both results
    are 0 where masked. The reward of a call of several generations (rounds of a `ToolAgent`, a summary before
    it) counts at the last one alone. With `reward.team_scope=episode` or `reward.propagation` each of an
    agent's calls has the team reward of the episode, and all of them are added up.

    Keys: `algorithm.gamma`, `lam`, `gae.level`, `call_weighting`; `critic.*`.
    Use when: replies are long or episodes have many turns, and a critic is affordable.
    Fails when: the critic is untrained or does not see what the reward depends on: the advantage is then its
    error.

    Args:
        values: `[bsz, response_len]` the critic's value before each token; masked entries may have any value.
        gamma: discount per token or turn.
        lam: GAE's lambda.
        traj_uid, agent_index, turn_index: `[bsz]` episode, agent and index among its calls; level `turn`
            needs the first and the last.
        level: `token` or `turn`; overridden by `config.gae.level`.
        reply_mask: `[bsz, response_len]` mask before rejection: at level `turn` a completely rejected reply
            has no advantage, but earlier replies bootstrap from its value and reward, unless another
            candidate of its call is left.
        repeated_reward: `[bsz]` at level `turn` the part of a row's reward that belongs to a later row of the
            same call, which has it too.
        others: see `core_algos.estimators`.

    Returns:
        advantages (whitened) and returns (`A + V` before whitening: the targets of the critic),
        `[bsz, response_len]`.

    Raises:
        ValueError: an unknown level, or level `turn` without its columns.
    """
    level = own_key(own_key(config, "gae", None), "level", level)
    check_tokens(response_mask, token_level_rewards=token_level_rewards, values=values)
    check_columns(response_mask, policy_index=policy_index, traj_uid=traj_uid, weights=weights)
    check_columns(response_mask, agent_index=agent_index, turn_index=turn_index)
    check_finite("token_level_rewards", token_level_rewards, response_mask)
    check_finite("values", values, response_mask)
    dtype = torch.promote_types(values.dtype, torch.float32)
    mask = response_mask.bool()
    rewards, values = (tensor.detach().to(dtype) for tensor in (token_level_rewards, values))
    if level == "token":
        advantages = _over_tokens(rewards, values, mask, gamma, lam)
        return whiten(advantages, mask, policy_index, weights), torch.where(mask, advantages + values, 0.0)
    if level != "turn":
        raise ValueError(f"algorithm.gae.level={level!r}: expected token or turn")
    if traj_uid is None or turn_index is None:
        raise ValueError(
            "algorithm.gae.level=turn needs traj_uid and turn_index: each sample's episode and its "
            "index in it"
        )
    turn_rewards, first_value, turn_values = _as_actions(rewards, values, mask, reply_mask, repeated_reward)
    rows = chain_rows(traj_uid, turn_index, agent_index, mask, reply_mask)
    chains = build_chains(traj_uid, turn_index, agent_index, rows)
    replies = _over_turns(turn_rewards, turn_values, chains, gamma, lam).to(dtype)
    advantages = whiten(replies, mask.any(dim=-1, keepdim=True), policy_index, weights)
    return torch.where(mask, advantages, 0.0), torch.where(mask, replies + first_value, 0.0)


def _as_actions(
    rewards: torch.Tensor,
    values: torch.Tensor,
    mask: torch.Tensor,
    reply_mask: torch.Tensor | None,
    repeated_reward: np.ndarray | None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the reward and the value of every reply, `[bsz, 1]`, and the value that is 0 where
    there is no reply.
    """
    real = mask.any(dim=-1, keepdim=True)
    reply = mask if reply_mask is None else torch.where(real, mask, reply_mask.bool())
    check_finite("token_level_rewards", rewards, reply)
    check_finite("values", values, reply)
    first_value = values.gather(1, reply.int().argmax(dim=-1, keepdim=True))
    turn_rewards = torch.where(reply, rewards, 0.0).sum(dim=-1, keepdim=True)
    if repeated_reward is not None:
        repeated = torch.as_tensor(np.asarray(repeated_reward, dtype=np.float64), device=rewards.device)
        turn_rewards = turn_rewards - repeated.to(rewards.dtype).unsqueeze(-1)
    return turn_rewards, first_value, torch.where(reply.any(dim=-1, keepdim=True), first_value, 0.0)


def _over_tokens(
    rewards: torch.Tensor, values: torch.Tensor, mask: torch.Tensor, gamma: float, lam: float
) -> torch.Tensor:
    """Compute advantages backwards over the columns; a masked token passes on the value and
    advantage of its right neighbour.
    """
    rewards = rewards.T.contiguous()
    values = values.T.contiguous()
    mask = mask.T.contiguous()
    out = torch.empty_like(rewards)
    later_value = torch.zeros_like(rewards[:1].sum(0))
    later_advantage = torch.zeros_like(rewards[:1].sum(0))
    for t in range(len(rewards) - 1, -1, -1):
        advantage = rewards[t] + gamma * later_value - values[t] + gamma * lam * later_advantage
        later_advantage = torch.where(mask[t], advantage, later_advantage)
        later_value = torch.where(mask[t], values[t], later_value)
        out[t] = later_advantage
    return out.T.contiguous()


def _over_turns(
    rewards: torch.Tensor, values: torch.Tensor, chains: Any, gamma: float, lam: float
) -> torch.Tensor:
    reward = rewards[:, 0].cpu().double().numpy()
    value = values[:, 0].cpu().double().numpy()
    delta = reward + gamma * after(chains, value) - value
    return torch.as_tensor(discounted_sums(chains, delta, gamma * lam), device=rewards.device).unsqueeze(-1)
