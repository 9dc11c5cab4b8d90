"""What outcome-supervised estimators share: one score a row in, one advantage a row out."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch


def outcome_scores(token_level_rewards: torch.Tensor, response_mask: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Score of each row (sum of its token rewards) and whether the row is real (has an unmasked token), both `[bsz]`.

    Raises ValueError when shapes differ or a real row's score is not finite.
    """
    if token_level_rewards.shape != response_mask.shape:
        raise ValueError(
            f"token_level_rewards {tuple(token_level_rewards.shape)} and response_mask {tuple(response_mask.shape)} differ in shape"
        )
    valid = response_mask.any(dim=-1).cpu().numpy()
    scores = token_level_rewards.sum(dim=-1).detach().cpu().double().numpy()
    bad = np.flatnonzero(valid & ~np.isfinite(scores))
    if len(bad):
        raise ValueError(
            f"token_level_rewards: {len(bad)} of {len(scores)} rows are not finite (first: row {bad[0]}); check the reward function"
        )
    return scores, valid


def singleton_advantage(scores: np.ndarray, config: Any) -> np.ndarray | float:
    """Advantage of a group of one: 0, or the raw score when `config.singleton == "raw"`."""
    mode = "zero" if config is None else config.singleton
    if mode not in ("zero", "raw"):
        raise ValueError(f"algorithm.singleton={mode!r}: expected zero or raw")
    return scores if mode == "raw" else 0.0


def broadcast(advantages: np.ndarray, response_mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Spread one advantage a row over the row's unmasked tokens: `(advantages, returns)`, one tensor `[bsz, response_len]`."""
    row = torch.as_tensor(advantages, dtype=torch.float32, device=response_mask.device)
    out = row.unsqueeze(-1) * response_mask.to(torch.float32)
    return out, out
