"""Token-level rewards from rewards of samples."""

from __future__ import annotations

import numpy as np
import torch


def place_on_last_token(rewards: np.ndarray, response_mask: torch.Tensor) -> torch.Tensor:
    """Return token scores `[bsz, response_len]` with each row's reward on its last unmasked token;
    rows without one stay zero.
    """
    positions = torch.arange(1, response_mask.shape[1] + 1, device=response_mask.device)
    last = (response_mask * positions).argmax(dim=1)
    scores = torch.zeros(response_mask.shape, dtype=torch.float32, device=response_mask.device)
    values = torch.as_tensor(np.asarray(rewards, dtype=np.float32), device=response_mask.device)
    scores[torch.arange(len(last)), last] = values * response_mask.any(dim=1)
    return scores
