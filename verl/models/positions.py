"""Whether a model can run more tokens than it has positions, found by running a miniature of it."""

from __future__ import annotations

from typing import Any

import torch

from verl.models.fingerprint import once_per_configuration
from verl.models.miniature import MiniatureError, miniature_model, one_thread


@once_per_configuration
@one_thread()
def fails_beyond_positions(config: Any) -> bool:
    """Return whether a model fails with one token more than it has positions, as one does that has a
    learned vector for each; False if no miniature can be run.
    """
    try:
        model = miniature_model(config, attention="eager")
    except MiniatureError:
        return False
    positions = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    if not isinstance(positions, int):
        return False
    tokens = torch.full((1, positions + 1), 3)
    with torch.no_grad():
        try:
            model(input_ids=tokens[:, :-1], use_cache=False)
        except Exception:
            # code of a model may raise anything; the layout check says so
            return False
        try:
            model(input_ids=tokens, use_cache=False)
        except Exception:  # of any kind, such as an index out of range
            return True
    return False
