"""Rows for the tests of estimators."""

from collections.abc import Callable

import pytest
import torch

Rows = Callable[..., tuple[torch.Tensor, torch.Tensor]]


@pytest.fixture
def rows() -> Rows:
    """Token rewards with each score on its row's last token, and the mask: both `[bsz, width]`; a row of
    length 0 is padding.
    """

    def make(
        scores: list[float], lengths: list[int] | None = None, width: int = 3
    ) -> tuple[torch.Tensor, torch.Tensor]:
        sizes = torch.tensor(lengths or [width] * len(scores))
        mask = (torch.arange(width) < sizes.unsqueeze(1)).long()
        rewards = torch.zeros(len(scores), width)
        rewards[torch.arange(len(scores)), (sizes - 1).clamp(min=0)] = torch.tensor(
            scores, dtype=torch.float32
        )
        return rewards, mask

    return make
