"""Values derived from a run's configuration before anything is started: output folder, defaults,
tokenizers, the printed placement.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from verl.models.path import absolute_model_path
from verl.trainer.config import ActorRolloutRefConfig, DataConfig, RolloutConfig, RunConfig, TrainerConfig
from verl.trainer.plan.devices import engine_pool
from verl.trainer.plan.placement import AgentPlacement, WorkerGroupSpec

# Enough to keep the engine's slots busy while environments run, few enough that calls do not time
# out in the queue.
EPISODES_PER_SLOT = 4


def run_dir_of(trainer: TrainerConfig) -> Path:
    """Return `trainer.default_local_dir`, or `outputs/<project>/<experiment>`."""
    return (
        Path(trainer.default_local_dir or Path("outputs") / trainer.project_name / trainer.experiment_name)
        .expanduser()
        .absolute()
    )


def steps_of_run(trainer: TrainerConfig, steps_of_epoch: int) -> int:
    """Return the number of training steps of the run: `trainer.total_training_steps`, or those of
    all epochs.
    """
    return (
        trainer.total_training_steps
        if trainer.total_training_steps > 0
        else steps_of_epoch * trainer.total_epochs
    )


def resolve_defaults(config: RunConfig) -> None:
    """Fill in defaults that other keys determine, and make model folders absolute, so that
    config.yaml is complete.
    """
    rollout = config.actor_rollout_ref.rollout
    data = config.data
    rollout.prompt_length = rollout.prompt_length or data.max_prompt_length
    rollout.response_length = rollout.response_length or data.max_response_length
    config.rollout.max_concurrent_episodes = config.rollout.max_concurrent_episodes or max(
        1, EPISODES_PER_SLOT * rollout.slots * engine_pool(config.trainer, config.rollout).size
    )
    agent = config.agent
    reward_model = config.reward.model
    reward_model.path = _folder(reward_model.path)
    for model in (config.actor_rollout_ref.model, config.critic.model):
        model.path, model.tokenizer_path = _folder(model.path), _folder(model.tokenizer_path)
    config.actor_rollout_ref.model.lora_adapter_path = _folder(
        config.actor_rollout_ref.model.lora_adapter_path
    )
    agent.model_ids = [_folder(model) for model in agent.model_ids]
    model_overrides = agent.agent_specific_parameters.get("model")
    if isinstance(model_overrides, dict):
        for name in ("tokenizer_path", "lora_adapter_path"):
            if isinstance(model_overrides.get(name), list):
                model_overrides[name] = [_folder(path) for path in model_overrides[name]]


def _folder(path: Any) -> Any:
    """Return `absolute_model_path` of a string; other values, which are checked later, unchanged."""
    return absolute_model_path(path) if isinstance(path, str) else path


def prompt_length_key(
    data: DataConfig, actor_rollout_ref: ActorRolloutRefConfig, rollout: RolloutConfig
) -> str:
    """Return the key that set the longest prompt of an agent, whose `rollout` section is given."""
    if rollout.prompt_length in (None, data.max_prompt_length):
        return "data.max_prompt_length"
    shared = rollout.prompt_length == actor_rollout_ref.rollout.prompt_length
    return (
        "actor_rollout_ref.rollout.prompt_length"
        if shared
        else "agent.agent_specific_parameters.rollout.prompt_length"
    )


def load_group_tokenizer(group: WorkerGroupSpec) -> Any:
    """Return the tokenizer of a worker group's model. Raises ModelPathError if it is missing or has
    tokens that the model lacks.
    """
    from verl.models.loader import ModelPathError, check_vocabulary, load_tokenizer

    model = group.config.model
    source = model.tokenizer_path or group.model_path
    try:
        tokenizer = load_tokenizer(source, trust_remote_code=model.trust_remote_code)
    except ModelPathError as error:
        if model.tokenizer_path is None:
            raise
        raise ModelPathError(f"model.tokenizer_path={source}: {error}") from error
    check_vocabulary(tokenizer, source, group.model_path, trust_remote_code=model.trust_remote_code)
    return tokenizer


def table_row(agent_id: str, row: AgentPlacement, adapter_sizes: Mapping[str, int]) -> str:
    """Return one line of the placement table: an agent, its policy, and the model of the policy."""
    model = str(row.config.model.path)
    if row.adapter is not None:
        model += (
            f", adapter of rank {row.config.model.lora_rank} with {adapter_sizes[row.adapter]:,} parameters"
        )
        if row.config.model.lora_adapter_path is not None:
            model += f" from {row.config.model.lora_adapter_path}"
    if row.frozen:
        model += ", frozen"
    return f"agent {agent_id} -> policy {row.policy_id} -> worker group {row.wg_id} ({model})"
