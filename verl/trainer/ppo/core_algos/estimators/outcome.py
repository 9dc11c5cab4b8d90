"""Common functions of outcome-supervised estimators: one score per row in, one advantage per row
out.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from verl.trainer.config.algorithm import EstimatorConfig
from verl.trainer.ppo.core_algos.checks import check_columns
from verl.trainer.ppo.core_algos.grouping import GroupStats, first_rows, group_index, group_stats
from verl.utils.names import own_key


def outcome_scores(
    token_level_rewards: torch.Tensor, response_mask: torch.Tensor
) -> tuple[np.ndarray, np.ndarray]:
    """Return the score of each row (sum of token rewards; 0 for a padding row) and whether it has
    an unmasked token, both `[bsz]`.

    Raises ValueError if shapes or devices differ, or the score of a row with an unmasked token is
    not finite.
    """
    if token_level_rewards.shape != response_mask.shape or token_level_rewards.device != response_mask.device:
        raise ValueError(
            f"token_level_rewards {tuple(token_level_rewards.shape)} on "
            f"{token_level_rewards.device} and response_mask {tuple(response_mask.shape)} on "
            f"{response_mask.device} differ in shape or device; both are [bsz, response_len]"
        )
    valid = real_rows(response_mask).cpu().numpy()
    scores = token_level_rewards.detach().sum(dim=-1).cpu().double().numpy()
    bad = np.flatnonzero(valid & ~np.isfinite(scores))
    if len(bad):
        raise ValueError(
            f"token_level_rewards: {len(bad)} of {len(scores)} rows are not finite (first: row "
            f"{bad[0]}); check the reward function"
        )
    scores[~valid] = 0.0
    return scores, valid


def real_rows(response_mask: torch.Tensor) -> torch.Tensor:
    """Return whether rows of `[bsz, response_len]` have an unmasked token: `[bsz]` bool. Scans only
    rows with a masked first token.
    """
    if response_mask.shape[1] == 0:
        return torch.zeros(len(response_mask), dtype=torch.bool, device=response_mask.device)
    real = response_mask[:, 0] != 0
    unknown = (~real).nonzero().squeeze(1)
    if len(unknown):
        real[unknown] = response_mask[unknown].bool().any(dim=1)
    return real


def singleton_advantage(scores: np.ndarray, config: EstimatorConfig) -> np.ndarray | float:
    """Return the advantage of a group of one: 0, or the raw score if `config.singleton == "raw"`."""
    mode = own_key(config, "singleton", "zero")
    if mode not in ("zero", "raw"):
        raise ValueError(f"algorithm.singleton={mode!r}: expected zero or raw")
    return scores if mode == "raw" else 0.0


def broadcast(
    advantages: np.ndarray, response_mask: torch.Tensor, rewards_dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """Broadcast one advantage per row to its unmasked tokens. Return `(advantages, returns)`, the
    same tensor `[bsz, response_len]`.

    It is float64 if the rewards are, else float32.
    """
    dtype = torch.promote_types(rewards_dtype, torch.float32)
    row = torch.as_tensor(advantages, dtype=dtype, device=response_mask.device)
    # Copied, then multiplied in place: a product of integers and floats would create another copy
    # of the mask.
    out = _empty(response_mask, dtype).copy_(response_mask)
    out.mul_(row.unsqueeze(-1))
    return out, out


def _empty(like: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return a tensor like `like`; on a CPU from NumPy, which uses huge pages: 16 MB are 8 page
    faults, not 4,096.
    """
    if like.device.type != "cpu":
        return torch.empty(like.shape, dtype=dtype, device=like.device)
    return torch.from_numpy(
        np.empty(tuple(like.shape), dtype=np.float64 if dtype == torch.float64 else np.float32)
    )


@dataclass(frozen=True)
class ScoredUnits:
    """Units that are compared within a group: rows, or trajectories with the mean score of their
    rows.

    Attributes:
        scores, valid, groups: score, validity and group of each unit, `[n_units]`.
        weights: weight of each unit in the statistics; None: equal weights.
        unit: `[bsz]` unit of each row; None: every row is a unit.
        row_weights: `[bsz]`; a row of weight 0 has advantage 0.
        rewards_dtype: dtype of the token rewards.
        copies: weights are numbers of copies of a unit (see `group_stats`).
    """

    scores: np.ndarray
    valid: np.ndarray
    groups: np.ndarray
    weights: np.ndarray | None = None
    unit: np.ndarray | None = None
    row_weights: np.ndarray | None = None
    rewards_dtype: torch.dtype = torch.float32
    copies: bool = False

    @classmethod
    def of(
        cls,
        token_level_rewards: torch.Tensor,
        response_mask: torch.Tensor,
        index: np.ndarray,
        traj_index: np.ndarray | None = None,
        weights: np.ndarray | None = None,
    ) -> ScoredUnits:
        """Return the rows of the groups `index`; with `traj_index` (weighted) means per trajectory,
        with equal weights of trajectories.
        """
        scores, valid = outcome_scores(token_level_rewards, response_mask)
        check_columns(response_mask, index=index, traj_index=traj_index, weights=weights)
        weights = None if weights is None else np.asarray(weights, dtype=np.float64)
        groups = group_index([index])
        if traj_index is None:
            return cls(scores, valid, groups, weights, None, weights, token_level_rewards.dtype)
        unit = group_index([groups, traj_index])
        per_unit = group_stats(scores, unit, valid, weights)
        return cls(
            per_unit.mean,
            per_unit.count > 0,
            groups[first_rows(unit)],
            None,
            unit,
            weights,
            token_level_rewards.dtype,
        )

    def stats(self) -> GroupStats:
        """Return the statistics of each group."""
        return group_stats(self.scores, self.groups, self.valid, self.weights, self.copies)

    def spread(
        self, advantages: np.ndarray, response_mask: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Broadcast one advantage per unit to the unmasked tokens of its rows, see `broadcast`."""
        rows = advantages if self.unit is None else advantages[self.unit]
        rows = rows if self.row_weights is None else np.where(self.row_weights > 0, rows, 0.0)
        return broadcast(rows, response_mask, self.rewards_dtype)


def zero_without_signal(
    scored: ScoredUnits, stats: GroupStats, relative: np.ndarray, config: EstimatorConfig
) -> np.ndarray:
    """Return `relative` `[n_units]` with exactly 0 for groups of equal scores and padding, and
    `config.singleton` for a group of one.
    """
    groups = scored.groups
    advantages = np.where(stats.constant[groups] | ~scored.valid, 0.0, relative)
    alone = (stats.count[groups] == 1) & scored.valid
    return (
        np.where(alone, singleton_advantage(scored.scores, config), advantages) if alone.any() else advantages
    )


def units_without_signal(scored: ScoredUnits, stats: GroupStats, config: EstimatorConfig) -> np.ndarray:
    """Return whether units have no signal, `[n_units]` bool: in a group of equal scores, or of one
    without `config.singleton="raw"`.
    """
    groups = scored.groups
    alone = (stats.count[groups] == 1) & (singleton_advantage(scored.scores, config) is scored.scores)
    return ~scored.valid | (stats.constant[groups] & ~alone)
