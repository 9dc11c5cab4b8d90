"""PF-PPO: resample a batch from itself with replacement, with weights that depend on the reward."""

from __future__ import annotations

import torch

from verl.protocol import DataProto

METHODS = ("pow", "max_min", "max_random")


def compute_pf_ppo_reweight_data(data: DataProto, reweight_method: str = "pow", weight_pow: float = 2.0) -> DataProto:
    """As many rows as there were, drawn with replacement and torch's global generator (PF-PPO, arXiv 2409.06957).

    Weights of a row of score `s` (the sum of its `token_level_scores`): `pow`: `|s|^weight_pow`; `max_min`: 1 for the greatest and the
    least score, else 0; `max_random`: 0.4 for the greatest, else 0.1; each plus 1e-8. Rows whose `response_mask` is empty
    are never drawn and set neither the greatest nor the least.

    Args:
        data: rows; lists of `meta_info` that have one entry a row are drawn along.
        reweight_method: `pow`, `max_min` or `max_random`.
        weight_pow: exponent of `pow`.

    Raises:
        ValueError: an unknown method, scores that are not finite, or no row to draw.
    """
    if reweight_method not in METHODS:
        raise ValueError(f"reweight_method={reweight_method!r}: expected one of {METHODS}")
    scores = data.batch["token_level_scores"].sum(dim=-1)
    real = torch.ones_like(scores, dtype=torch.bool)
    if "response_mask" in data.batch.keys():  # noqa: SIM118
        real = data.batch["response_mask"].bool().any(dim=-1)
    if not real.any():
        raise ValueError("compute_pf_ppo_reweight_data: no row has an unmasked token, so none can be drawn")
    if not torch.isfinite(scores[real]).all():
        raise ValueError("token_level_scores are not finite; check the reward function")
    if reweight_method == "pow":
        weights = scores.abs() ** weight_pow
    elif reweight_method == "max_min":
        weights = ((scores == scores[real].max()) | (scores == scores[real].min())).to(torch.float32)
    else:
        weights = torch.where(scores == scores[real].max(), 0.4, 0.1)
    weights = torch.where(real, weights + 1e-8, 0.0)
    rows = torch.multinomial(weights, len(scores), replacement=True)
    drawn = data.select_idxs(rows)
    drawn.meta_info = {
        key: [value[i] for i in rows.tolist()] if isinstance(value, list) and len(value) == len(scores) else value
        for key, value in data.meta_info.items()
    }
    return drawn
