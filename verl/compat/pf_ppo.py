"""PF-PPO: resample the rows of a batch with replacement, with weights that depend on the reward."""

from __future__ import annotations

import torch

from verl.protocol.data_proto import DataProto

METHODS = ("pow", "max_min", "max_random")


def compute_pf_ppo_reweight_data(
    data: DataProto, reweight_method: str = "pow", weight_pow: float = 2.0
) -> DataProto:
    """Return the same number of rows, sampled with replacement by torch's global generator (PF-PPO,
    arXiv 2409.06957).

    Weights of a row with score `s` (the sum of its `token_level_scores`): `pow`: `|s|^weight_pow`; `max_min`:
    1 for the highest and the lowest score, else 0; `max_random`: 0.4 for the highest, else 0.1; each plus
    1e-8. Rows with an empty `response_mask` are never sampled and are ignored for the highest and lowest
    score.

    Args:
        data: rows; lists of `meta_info` with one entry per row are resampled as well.
        reweight_method: `pow`, `max_min` or `max_random`.
        weight_pow: exponent of `pow`.

    Raises:
        ValueError: an unknown method, non-finite scores, or no row with an unmasked token.
    """
    if reweight_method not in METHODS:
        raise ValueError(f"reweight_method={reweight_method!r}: expected one of {METHODS}")
    scores = data.batch["token_level_scores"].sum(dim=-1)
    real = torch.ones_like(scores, dtype=torch.bool)
    if "response_mask" in data.batch.keys():  # noqa: SIM118
        real = data.batch["response_mask"].bool().any(dim=-1)
    if not real.any():
        raise ValueError("compute_pf_ppo_reweight_data: no row has an unmasked token, so none can be sampled")
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
    sampled = data.select_idxs(rows)
    sampled.meta_info = {
        key: [value[i] for i in rows.tolist()]
        if isinstance(value, list) and len(value) == len(scores)
        else value
        for key, value in data.meta_info.items()
    }
    return sampled
