"""Critics: their configuration, their inputs, and metrics of their values."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from verl.trainer.config import CriticConfig, RunConfig
from verl.trainer.plan.agents import agent_settings
from verl.trainer.plan.registry import estimator_needs
from verl.trainer.plan.run import RunPlan
from verl.trainer.plan.untrained_agents import trained_agents

if TYPE_CHECKING:
    import torch

    from verl.protocol import DataProto


def need_critic(config: RunConfig) -> bool:
    """Return whether a run with this configuration trains a critic, by verl's name; a run reads its
    plan (`RunPlan.needs_critic`).
    """
    if config.critic.enable is not None:
        return bool(config.critic.enable)
    estimators = [
        agent_settings(config.algorithm, agent_id).adv_estimator for agent_id in trained_agents(config.agent)
    ]
    return any(estimator_needs(name, "values") for name in estimators)


def critic_signature(critic: CriticConfig, plan: RunPlan) -> dict[str, Any]:
    """Return the part that a checkpoint must match: the worker groups with a critic, and
    the input of the critics.
    """
    groups = sorted(plan.critics)
    view = "own" if critic.joint_prompt_length is None else "joint"
    return {"wg_ids": groups, "view": view} if groups else {}


def value_metrics(batch: DataProto, agents: Mapping[str, Collection[str]]) -> dict[str, float]:
    """Return `critic/values/*` and `critic/vf_explained_var` of the rows with values, in total and
    under `wg/<id>/`.

    Args:
        batch: scored rows of the whole team.
        agents: agents with values of each worker group (`RunPlan.critics`).
    """
    out = _value_metrics(batch, {agent for group_agents in agents.values() for agent in group_agents})
    for wg_id, group_agents in agents.items():
        out |= {f"wg/{wg_id}/{name}": value for name, value in _value_metrics(batch, group_agents).items()}
    return out


def _value_metrics(batch: DataProto, agents: Collection[str]) -> dict[str, float]:
    from verl.trainer.ppo.metric_utils import compute_data_metrics

    rows = batch.select_idxs(np.flatnonzero(_of_agents(batch, agents)))
    metrics = compute_data_metrics(rows, use_critic=True) if len(rows) else {}
    return {
        name: value for name, value in metrics.items() if name.startswith(("critic/values/", "critic/vf_"))
    }


def _of_agents(batch: DataProto, agents: Collection[str]) -> np.ndarray:
    return np.isin(batch.non_tensor_batch["agent_id"].astype(str), sorted(agents))


def critic_rows(batch: DataProto, agents: Collection[str]) -> DataProto:
    """Return the input of the critics: the batch, with `critic_prompts` (`critic.joint_prompt_length`)
    instead of prompts if there are any.

    Rows of agents without values become padding rows (empty `response_mask`).
    """
    import torch

    from verl.protocol import DataProto

    tensors: Mapping[str, torch.Tensor] = dict(batch.batch.items())
    value_rows = torch.from_numpy(_of_agents(batch, agents))
    masked = tensors["response_mask"] * value_rows[:, None].to(tensors["response_mask"])
    return DataProto.from_dict(
        tensors={**tensors, **_joint(tensors), "response_mask": masked},
        non_tensors={"wg_id": batch.non_tensor_batch["wg_id"]},
    )


def _joint(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    if "critic_prompts" not in tensors:
        return {}
    import torch

    responses = tensors["responses"]
    attention = torch.cat(
        [tensors["critic_prompt_mask"], tensors["attention_mask"][:, -responses.shape[1] :]], dim=1
    )
    return {
        "prompts": tensors["critic_prompts"],
        "input_ids": torch.cat([tensors["critic_prompts"], responses], dim=1),
        "attention_mask": attention,
        "position_ids": (attention.cumsum(dim=1) - 1).clamp(min=0),
    }
