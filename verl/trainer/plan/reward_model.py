"""The place of the reward model (`reward.model`): a worker group of its own without a trainer, or
that of a frozen agent.
"""

from __future__ import annotations

import copy
from dataclasses import replace

from verl.models.path import absolute_model_path
from verl.trainer.config import ActorRolloutRefConfig, AgentConfig, RewardConfig
from verl.trainer.config.reward_model import CLASSIFIER, RewardModelConfig, check_reward_model
from verl.trainer.config.spec import ConfigError
from verl.trainer.plan.placement import AgentPlacement, Placement, WorkerGroupSpec
from verl.trainer.plan.untrained_agents import by_agent

NAME = "reward_model"
# Rows of a forward pass of a classifier. Shorter batches are padded to as many, so that a score does
# not depend on what is scored beside it; with more, the last batches of a step would be padding.
CLASSIFIER_ROWS = 8


def with_reward_model(
    placement: Placement,
    reward: RewardConfig,
    agent: AgentConfig,
    actor_rollout_ref: ActorRolloutRefConfig,
) -> Placement:
    """Return the placement with the row of the reward model and, if it has a model of its own, its
    worker group.

    Raises:
        ConfigError: a key is missing, or `reward.model.agent` names an agent that is trained or
            behind an API.
        PlacementError: `reward.model.agent` names no agent.
    """
    model = reward.model
    check_reward_model(model)
    if model.kind is None or model.kind == "api":
        return placement
    if model.agent is not None:
        return replace(
            placement, reward_model=_with_lengths(_judging_agent(placement, agent, model.agent), model)
        )
    row_config = copy.deepcopy(actor_rollout_ref)
    row_config.model.path, row_config.model.tokenizer_path = absolute_model_path(str(model.path)), None
    row_config.model.trust_remote_code = model.trust_remote_code
    if model.kind == CLASSIFIER:
        row_config.rollout.name = CLASSIFIER
        row_config.rollout.max_num_seqs = min(CLASSIFIER_ROWS, row_config.rollout.slots)
        row_config.rollout.tensor_model_parallel_size = 1
    used_ids = {spec.wg_id for spec in placement.groups} | {row.policy_id for row in placement.agents}
    wg_id = next(
        name for name in (NAME, *(f"{NAME}_{i}" for i in range(2, len(used_ids) + 3))) if name not in used_ids
    )
    row = _with_lengths(AgentPlacement(NAME, wg_id, wg_id, row_config, frozen=True), model)
    group = WorkerGroupSpec(wg_id, str(row_config.model.path), (), row.config, trained=False)
    return replace(placement, groups=(*placement.groups, group), reward_model=row)


def _with_lengths(row: AgentPlacement, model: RewardModelConfig) -> AgentPlacement:
    """Return the row with the lengths of the reward model's prompt and reply, by which its engine
    is built.
    """
    row_config = copy.deepcopy(row.config)
    row_config.rollout.prompt_length, row_config.rollout.val_kwargs.response_length = model.max_length, None
    row_config.rollout.response_length = 1 if model.kind == CLASSIFIER else model.response_length
    return replace(row, config=row_config)


def _judging_agent(placement: Placement, agent: AgentConfig, name: str) -> AgentPlacement:
    agent_id = next(iter(by_agent("reward.model.agent", [name], agent.agent_ids)))
    row = next((a for a in placement.agents if a.agent_id == agent_id), None)
    if row is None:
        raise ConfigError(
            f"reward.model.agent={name} is behind an API; set reward.model.kind=api and "
            "reward.model.api instead"
        )
    if not row.frozen:
        raise ConfigError(
            f"reward.model.agent={name} is trained, so its scores would change with it; name an "
            "agent of agent.frozen, or set reward.model.path to a model of the judge's own"
        )
    return row
