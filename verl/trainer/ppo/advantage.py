"""From token rewards to advantages for a whole team: the group key is chosen here, the mathematics is in `core_algos`."""

from __future__ import annotations

import inspect

import numpy as np

from verl.protocol import DataProto
from verl.trainer.config import AlgorithmConfig
from verl.trainer.ppo.core_algos import get_adv_estimator_fn, group_index


def group_fields(config: AlgorithmConfig) -> list[str]:
    """Sample fields whose tuple is the group: `algorithm.group_by`, else Dr. MAS's `[uid, agent_id]` or GRPO's `[uid]`."""
    if config.group_by is not None:
        return list(config.group_by)
    return ["uid", "agent_id"] if config.group_by_agent_id else ["uid"]


def group_keys(data: DataProto, fields: list[str]) -> np.ndarray:
    """Number of each row's group, `[bsz]`; no fields means one global group.

    Raises ValueError when the samples lack a field.
    """
    missing = [f for f in fields if f not in data.non_tensor_batch]
    if missing:
        raise ValueError(f"algorithm.group_by names {missing}, which samples do not have; they have {sorted(data.non_tensor_batch)}")
    return group_index([data.non_tensor_batch[f] for f in fields]) if fields else np.zeros(len(data), dtype=np.int64)


def compute_advantage(data: DataProto, config: AlgorithmConfig) -> DataProto:
    """Set `advantages` and `returns` `[bsz, response_len]` from `token_level_rewards` with `algorithm.adv_estimator`.

    Grouped by `uid` alone, GRPO averages the rows of one trajectory first (they share one advantage); grouped by agent as
    well, every row is compared on its own (Dr. MAS, arXiv 2602.08847).
    """
    estimator = get_adv_estimator_fn(config.adv_estimator)
    fields = group_fields(config)
    offered = {
        "index": group_keys(data, fields),
        "config": config,
        "norm_adv_by_std_in_grpo": config.norm_adv_by_std_in_grpo,
        "non_tensor_batch": data.non_tensor_batch,
        "batch": data.batch,
    }
    if fields == ["uid"]:
        offered["traj_index"] = data.non_tensor_batch["traj_uid"]
    accepted = inspect.signature(estimator).parameters
    takes_any = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in accepted.values())
    arguments = {k: v for k, v in offered.items() if takes_any or k in accepted}
    advantages, returns = estimator(
        token_level_rewards=data.batch["token_level_rewards"], response_mask=data.batch["response_mask"], **arguments
    )
    data.batch["advantages"], data.batch["returns"] = advantages, returns
    return data
