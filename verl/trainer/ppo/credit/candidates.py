"""Advantages in a tree whose committed replies form an episode (`rollout.tree.returns=committed`).

    A(row) = [row committed] A_estimator + w (r - mean_c r) / (std_c r + 1e-6)

The estimator (`algorithm.adv_estimator`) sees the committed replies alone, which are an episode as in
parallel sampling: rewards by `reward.team_scope` or `reward.propagation`, chains of calls, anchors, values
and a greedy episode as a baseline mean the same. A candidate that was not committed led to nothing that was
observed, so no later reward, value or chain is credited to it. It is compared with the other candidates of
its call `c` only, by `r`, the reward of its own action on its own fork less its penalties and its KL in the
reward, as in AT-GRPO (arXiv 2510.11062); `r` of the committed reply is measured in the same way, and has no
later rewards. Both terms have a baseline of their own, so returns with and without a continuation are never
compared. With `gigpo` it is AT-GRPO's grouping together with GiGPO's episode and step terms.

With a selection by reward (`rollout.tree.select=greedy`, `softmax`) committed replies are better than samples
of the policy: the first term then learns from the returns of the best of K. With `first` or `random` they are
samples of the policy.

Keys: `rollout.tree.returns`, `rollout.tree.candidate_weight`; `algorithm.norm_adv_by_std_in_grpo` (without
it, no division).
Use when: the reward of an action does not show its effect on the outcome, and candidates of one call can be
told apart by it.
Fails when: K is large and calls are many: only one of K replies learns from the outcome.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from verl.protocol import DataProto
from verl.trainer.config import AlgorithmConfig
from verl.trainer.plan.agents import split_by_settings
from verl.trainer.ppo.core_algos.estimators.grpo import group_relative
from verl.trainer.ppo.core_algos.estimators.outcome import ScoredUnits, real_rows
from verl.trainer.ppo.core_algos.grouping import group_index

EPSILON = 1e-6


def committed_rows(batch: DataProto) -> np.ndarray:
    """Return whether episodes continued with the rows, `[bsz]` bool."""
    return np.asarray(batch.non_tensor_batch["committed"].astype(bool))


def with_other_candidates(values: torch.Tensor, committed: np.ndarray) -> torch.Tensor:
    """Return `[bsz, response_len]`: `values` `[n_committed, response_len]` in the committed rows,
    and 0 in the others.
    """
    place = torch.as_tensor(np.flatnonzero(committed), device=values.device)
    return values.new_zeros((len(committed), *values.shape[1:])).index_copy_(0, place, values)


def compute_committed_advantage(
    batch: DataProto,
    estimate: Callable[[DataProto], DataProto],
    config: AlgorithmConfig,
    candidate_weight: float,
) -> DataProto:
    """Set `advantages` and `returns` `[bsz, response_len]` of a tree, see the module; `returns` of
    candidates not committed are 0.

    If the estimator weighs rows in the loss, the candidates of a call have the weight of its
    committed reply. With `candidate_weight=0` candidates that were not committed have weight 0 in
    the loss.

    Args:
        batch: the arguments of the estimator, and the columns `committed`, `traj_uid`, `turn`,
            `call`, `candidate_reward`, `invalid_penalty` and `overlong_penalty`, with one committed
            row for each call.
        estimate: sets `advantages`, `returns` and optionally `row_weights` of the committed rows.
        config: source of `norm_adv_by_std_in_grpo`, which may differ by agent.
        candidate_weight: `w`.
    """
    committed = committed_rows(batch)
    episodes = estimate(batch.select_idxs(committed))
    for name in ("advantages", "returns"):
        batch.batch[name] = with_other_candidates(episodes.batch[name], committed)
    advantages = batch.batch["advantages"]
    mask = batch.batch["response_mask"].bool()
    candidate_advantages = torch.as_tensor(
        candidate_weight * compare_candidates(batch, config), dtype=advantages.dtype, device=mask.device
    )
    batch.batch["advantages"] = advantages + torch.where(mask, candidate_advantages.unsqueeze(-1), 0.0)
    if "row_weights" in set(episodes.batch.keys()) or candidate_weight == 0:
        batch.batch["row_weights"] = _row_weights(batch, episodes, candidate_weight)
    return batch


def compare_candidates(batch: DataProto, config: AlgorithmConfig) -> np.ndarray:
    """Return `(r - mean_c r) / (std_c r + 1e-6)` of every row, `[bsz]`: 0 for a call with one
    candidate or equal rewards.
    """
    columns = batch.non_tensor_batch
    tensors = batch.batch
    penalties = columns["invalid_penalty"].astype(np.float64) + columns["overlong_penalty"].astype(np.float64)
    kl = (tensors["token_level_rewards"] - tensors["token_level_scores"]).sum(dim=-1).cpu().double().numpy()
    rewards = columns["candidate_reward"].astype(np.float64) - penalties + kl
    valid = real_rows(tensors["response_mask"]).cpu().numpy()
    calls = _calls(batch)
    out = np.zeros(len(batch))
    for settings, rows in split_by_settings(config, columns["agent_id"]):
        scored = ScoredUnits(np.where(valid, rewards, 0.0)[rows], valid[rows], group_index([calls[rows]]))
        out[rows] = group_relative(scored, EPSILON, settings.norm_adv_by_std_in_grpo, None)
    return np.where(valid, out, 0.0)


def _calls(batch: DataProto) -> np.ndarray:
    return group_index([batch.non_tensor_batch[name] for name in ("traj_uid", "turn", "call")])


def _row_weights(batch: DataProto, episodes: DataProto, candidate_weight: float) -> torch.Tensor:
    committed = committed_rows(batch)
    calls = _calls(batch)
    by_call = np.zeros(calls.max(initial=-1) + 1)
    committed_weights = (
        episodes.batch["row_weights"].cpu().numpy() if "row_weights" in set(episodes.batch.keys()) else 1.0
    )
    by_call[calls[committed]] = committed_weights
    weights = by_call[calls] if candidate_weight else np.where(committed, by_call[calls], 0.0)
    return torch.as_tensor(weights, dtype=torch.float32, device=batch.batch["response_mask"].device)
