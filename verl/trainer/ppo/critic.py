"""Critics: the worker groups that have one, and the inputs of critics."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from verl.trainer.config import CriticConfig, RunConfig
from verl.trainer.placement.table import Placement, WorkerGroupSpec
from verl.trainer.placement.untrained import trained_agents
from verl.trainer.ppo.per_agent import estimators_in_use
from verl.trainer.ppo.registry import estimator_needs, estimator_takes

if TYPE_CHECKING:
    import torch

    from verl.protocol import DataProto


def reads_values(estimator: str) -> bool:
    """Return whether the estimator accepts values: it has a parameter `values` or `batch`."""
    return estimator_takes(estimator, "values") or estimator_takes(estimator, "batch")


def needs_values(estimator: str) -> bool:
    """Return whether the estimator has a parameter `values` without a default. Raises ValueError for an
    unknown name.
    """
    return estimator_needs(estimator, "values")


def need_critic(config: RunConfig) -> bool:
    """Return whether the run trains a critic: `critic.enable`, or if null, whether any agent's estimator
    needs values.
    """
    if config.critic.enable is not None:
        return bool(config.critic.enable)
    return any(map(needs_values, estimators_in_use(config.algorithm, trained_agents(config.agent))))


def critic_agents(config: RunConfig, placement: Placement) -> dict[str, tuple[str, ...]]:
    """Return the agents whose rows get values, by worker group; a group without such agents has no critic,
    nor has an evaluation.

    With `critic.enable=null` these are the trained agents whose estimator needs values, with true all trained
    agents, with false none.
    """
    if config.critic.enable is False or config.trainer.val_only:
        return {}
    out: dict[str, tuple[str, ...]] = {}
    for row in placement.trained:
        if config.critic.enable or any(
            map(needs_values, estimators_in_use(config.algorithm, [row.agent_id]))
        ):
            out[row.wg_id] = (*out.get(row.wg_id, ()), row.agent_id)
    return out


def critic_signature(config: RunConfig, placement: Placement) -> dict[str, Any]:
    """Return the part that a checkpoint must match: the worker groups with a critic, and `critic.view`."""
    groups = sorted(critic_agents(config, placement))
    return {"wg_ids": groups, "view": config.critic.view} if groups else {}


def critic_config(critic: CriticConfig, spec: WorkerGroupSpec) -> CriticConfig:
    """Return the configuration of one group's critic: model and tokenizer default to the policy's."""
    policy = spec.config.model
    model = critic.model
    if model.path is None:
        model = replace(
            model, path=policy.path, trust_remote_code=model.trust_remote_code or policy.trust_remote_code
        )
    tokenizer = model.tokenizer_path or policy.tokenizer_path or policy.path
    return replace(critic, model=replace(model, tokenizer_path=tokenizer))


def value_metrics(batch: DataProto, agents: Mapping[str, Collection[str]]) -> dict[str, float]:
    """Return `critic/values/*` and `critic/vf_explained_var` of the rows with values, in total and under
    `wg/<id>/`.

    Args:
        batch: scored rows of the whole team.
        agents: result of `critic_agents`.
    """
    out = _value_metrics(batch, {agent for own in agents.values() for agent in own})
    for wg_id, own in agents.items():
        out |= {f"wg/{wg_id}/{name}": value for name, value in _value_metrics(batch, own).items()}
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
    """Return the input of the critics: the batch, with `critic_prompts` (`critic.view=joint`) instead of
    prompts if there are any.

    Rows of agents without values become padding rows (empty `response_mask`).
    """
    import torch

    from verl.protocol import DataProto

    tensors: Mapping[str, torch.Tensor] = dict(batch.batch.items())
    wanted = torch.from_numpy(_of_agents(batch, agents))
    masked = tensors["response_mask"] * wanted[:, None].to(tensors["response_mask"])
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
