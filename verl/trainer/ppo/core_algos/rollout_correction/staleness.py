"""How many weight versions old the samples are."""

from __future__ import annotations

import numpy as np

from verl.protocol import DataProto
from verl.trainer.placement import slug


def staleness_metrics(batch: DataProto, version: int) -> dict[str, float]:
    """`agent/<agent>/staleness/mean|max`: `version` of the current weights minus that of each row with an unmasked token.

    Args:
        batch: `response_mask`, and the columns `agent_id` and `version` (of the weights that a reply was sampled with).
        version: of the weights that are about to be updated.
    """
    columns = batch.non_tensor_batch
    real = batch.batch["response_mask"].any(dim=-1).cpu().numpy()
    age = version - columns["version"].astype(np.int64)
    out: dict[str, float] = {}
    for agent_id in dict.fromkeys(columns["agent_id"][real]):
        own = age[real & (columns["agent_id"] == agent_id)]
        out[f"agent/{slug(agent_id)}/staleness/mean"] = float(own.mean())
        out[f"agent/{slug(agent_id)}/staleness/max"] = float(own.max())
    return out
