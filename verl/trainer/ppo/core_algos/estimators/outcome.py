"""What outcome-supervised estimators share: one score per row in, one advantage per row out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from verl.trainer.ppo.core_algos.checks import check_columns
from verl.trainer.ppo.core_algos.grouping import GroupStats, first_rows, group_index, group_stats
from verl.utils.names import own_key


def outcome_scores(token_level_rewards: torch.Tensor, response_mask: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Score of each row (sum of its token rewards; 0 for a padding row) and whether the row is real (has an unmasked token), both `[bsz]`.

    Raises ValueError when shapes or devices differ, or a real row's score is not finite.
    """
    if token_level_rewards.shape != response_mask.shape or token_level_rewards.device != response_mask.device:
        raise ValueError(
            f"token_level_rewards {tuple(token_level_rewards.shape)} on {token_level_rewards.device} and response_mask "
            f"{tuple(response_mask.shape)} on {response_mask.device} differ in shape or device; both are [bsz, response_len]"
        )
    valid = real_rows(response_mask).cpu().numpy()
    scores = token_level_rewards.detach().sum(dim=-1).cpu().double().numpy()
    bad = np.flatnonzero(valid & ~np.isfinite(scores))
    if len(bad):
        raise ValueError(
            f"token_level_rewards: {len(bad)} of {len(scores)} rows are not finite (first: row {bad[0]}); check the reward function"
        )
    scores[~valid] = 0.0
    return scores, valid


def real_rows(response_mask: torch.Tensor) -> torch.Tensor:
    """Which rows of `[bsz, response_len]` have an unmasked token: `[bsz]` bool; rows that begin with one are not read further."""
    if response_mask.shape[1] == 0:
        return torch.zeros(len(response_mask), dtype=torch.bool, device=response_mask.device)
    real = response_mask[:, 0] != 0
    unsure = (~real).nonzero().squeeze(1)
    if len(unsure):
        real[unsure] = response_mask[unsure].bool().any(dim=1)
    return real


def singleton_advantage(scores: np.ndarray, config: Any) -> np.ndarray | float:
    """Advantage of a group of one: 0, or the raw score when `config.singleton == "raw"`."""
    mode = own_key(config, "singleton", "zero")
    if mode not in ("zero", "raw"):
        raise ValueError(f"algorithm.singleton={mode!r}: expected zero or raw")
    return scores if mode == "raw" else 0.0


def broadcast(advantages: np.ndarray, response_mask: torch.Tensor, rewards_dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Spread one advantage a row over the row's unmasked tokens: `(advantages, returns)`, one tensor `[bsz, response_len]`.

    It is float64 when the rewards are, else float32.
    """
    dtype = torch.promote_types(rewards_dtype, torch.float32)
    row = torch.as_tensor(advantages, dtype=dtype, device=response_mask.device)
    # Copied and then multiplied in place: a product of integers and floats would first make a second copy of the mask.
    out = _empty(response_mask, dtype).copy_(response_mask)
    out.mul_(row.unsqueeze(-1))
    return out, out


def _empty(like: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A tensor of that shape and device. On a CPU from NumPy, which asks for huge pages: 16 MB are 8 page faults, not 4,096."""
    if like.device.type != "cpu":
        return torch.empty(like.shape, dtype=dtype, device=like.device)
    return torch.from_numpy(np.empty(tuple(like.shape), dtype=np.float64 if dtype == torch.float64 else np.float32))


@dataclass(frozen=True)
class Compared:
    """What a group compares: rows, or trajectories that each stand for the mean of their rows.

    Attributes:
        scores, valid, groups: of each unit, `[n_units]`.
        weights: of each unit in the statistics; None when all weigh the same.
        unit: `[bsz]` unit of each row; None when every row is its own.
        row_weights: `[bsz]`; a row of weight 0 has advantage 0.
        rewards_dtype: of the token rewards.
        copies: a weight says how many units a unit stands for (see `group_stats`).
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
    ) -> Compared:
        """Rows of the groups `index`; with `traj_index` the (weighted) mean of each trajectory of a group, all trajectories alike."""
        scores, valid = outcome_scores(token_level_rewards, response_mask)
        check_columns(response_mask, index=index, traj_index=traj_index, weights=weights)
        weights = None if weights is None else np.asarray(weights, dtype=np.float64)
        groups = group_index([index])
        if traj_index is None:
            return cls(scores, valid, groups, weights, None, weights, token_level_rewards.dtype)
        unit = group_index([groups, traj_index])
        per_unit = group_stats(scores, unit, valid, weights)
        return cls(per_unit.mean, per_unit.count > 0, groups[first_rows(unit)], None, unit, weights, token_level_rewards.dtype)

    def stats(self) -> GroupStats:
        """Statistics of each group."""
        return group_stats(self.scores, self.groups, self.valid, self.weights, self.copies)

    def spread(self, advantages: np.ndarray, response_mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """One advantage a unit over the unmasked tokens of its rows, as `broadcast` returns it."""
        rows = advantages if self.unit is None else advantages[self.unit]
        rows = rows if self.row_weights is None else np.where(self.row_weights > 0, rows, 0.0)
        return broadcast(rows, response_mask, self.rewards_dtype)


def settle(compared: Compared, stats: GroupStats, relative: np.ndarray, config: Any) -> np.ndarray:
    """Return `relative` `[n_units]` with exactly 0 for groups of equal scores and padding, and `config.singleton` for a group of one."""
    groups = compared.groups
    settled = np.where(stats.constant[groups] | ~compared.valid, 0.0, relative)
    alone = (stats.count[groups] == 1) & compared.valid
    return np.where(alone, singleton_advantage(compared.scores, config), settled) if alone.any() else settled


def silent_units(compared: Compared, stats: GroupStats, config: Any) -> np.ndarray:
    """Return the units without a signal, `[n_units]` bool: in a group of equal scores, or alone without `config.singleton="raw"`."""
    groups = compared.groups
    alone = (stats.count[groups] == 1) & (singleton_advantage(compared.scores, config) is compared.scores)
    return ~compared.valid | (stats.constant[groups] & ~alone)
