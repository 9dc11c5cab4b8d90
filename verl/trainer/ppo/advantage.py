"""From token rewards to advantages for a whole team: the group key is chosen here, the mathematics is in `core_algos`."""

from __future__ import annotations

import inspect

import numpy as np
import torch

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


def compute_advantage(
    data: DataProto,
    adv_estimator: str,
    gamma: float = 1.0,
    lam: float = 1.0,
    num_repeat: int = 1,
    norm_adv_by_std_in_grpo: bool = True,
    config: AlgorithmConfig | None = None,
) -> DataProto:
    """Set `advantages` and `returns` `[bsz, response_len]` from `token_level_rewards`.

    Grouped by `uid` alone, GRPO averages the rows of one trajectory first (they share one advantage); grouped by agent as
    well, every row is compared on its own (Dr. MAS, arXiv 2602.08847). An estimator is handed those of the arguments below,
    and of `values`, `index`, `traj_index`, `batch` and `non_tensor_batch`, that its signature names.

    Args:
        data: `token_level_rewards`, `response_mask` and the columns of the group key.
        adv_estimator: a name of `register_adv_est`.
        gamma, lam, num_repeat: for estimators that use them.
        norm_adv_by_std_in_grpo: divide by the group's standard deviation.
        config: gives the group key; without it rows are grouped by `uid`, each row on its own, as in verl.
    """
    estimator = get_adv_estimator_fn(adv_estimator)
    fields = ["uid"] if config is None else group_fields(config)
    offered = {
        "index": group_keys(data, fields),
        "config": config,
        "gamma": gamma,
        "lam": lam,
        "num_repeat": num_repeat,
        "norm_adv_by_std_in_grpo": norm_adv_by_std_in_grpo,
        "non_tensor_batch": data.non_tensor_batch,
        "batch": data.batch,
    }
    if "values" in set(data.batch.keys()):
        offered["values"] = data.batch["values"]
    if config is not None and fields == ["uid"]:
        offered["traj_index"] = data.non_tensor_batch["traj_uid"]
    accepted = inspect.signature(estimator).parameters
    takes_any = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in accepted.values())
    arguments = {k: v for k, v in offered.items() if takes_any or k in accepted}
    advantages, returns = estimator(
        token_level_rewards=data.batch["token_level_rewards"], response_mask=data.batch["response_mask"], **arguments
    )
    data.batch["advantages"], data.batch["returns"] = advantages, returns
    return data


def compute_response_mask(data: DataProto) -> torch.Tensor:
    """The attention mask of the response part, `[bsz, response_len]`."""
    return data.batch["attention_mask"][:, -data.batch["responses"].size(1) :]
