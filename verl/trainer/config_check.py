"""Values that a type cannot rule out: names that nothing registers, sizes that cannot be, keys that contradict each other."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any

from verl.trainer.config import ActorConfig, ActorRolloutRefConfig, CriticConfig, RunConfig, TrainedModelConfig
from verl.trainer.config.names import ATTENTION_NAMES, DTYPE_NAMES, KL_ESTIMATORS, LOSS_AGG_MODES, SCHEDULES, VIEWS
from verl.trainer.config.reward import PROPAGATIONS, SHAPINGS, TEAM_SCOPES
from verl.trainer.config.run import SAMPLINGS, TREE_SELECTIONS
from verl.trainer.placement import AgentPlacement, Placement, slug
from verl.trainer.ppo.per_agent import agent_config, check_per_agent, own_keys
from verl.trainer.ppo.registry import ESTIMATORS, POLICY_LOSSES
from verl.utils.names import did_you_mean, value_at

# Columns of a sample that name it; what `algorithm.group_by` may list.
SAMPLE_FIELDS = ("uid", "traj_uid", "task_id", "agent_id", "policy_id", "wg_id", "turn", "call", "candidate", "data_source")

# Those that tell tasks apart, and those that alone stand for a baseline over the whole batch.
TASK_FIELDS = ("uid", "traj_uid", "task_id")
BATCH_FIELDS = ("policy_id", "wg_id", "agent_id")

# Columns of a sample that are numbers; what `algorithm.gdpo_reward_keys` may list.
REWARD_FIELDS = (
    "team_reward", "local_reward", "step_reward", "mixed_reward", "invalid_penalty", "overlong_penalty", "reward", "valid", "turn", "call",
    "candidate", "committed", "version", "response_clipped", "prompt_clipped",
)  # fmt: skip

# Arguments of a tokenizer's apply_chat_template that the run gives itself.
TEMPLATE_ARGUMENTS = ("conversation", "tokenize", "add_generation_prompt", "return_tensors", "return_dict")


class ConfigError(ValueError):
    """A key whose value cannot be used; the message names the key, the value and what is expected."""


@dataclass(frozen=True)
class Range:
    """Finite numbers from `low` (itself left out when `open_low`) to `high`."""

    low: float
    high: float = math.inf
    open_low: bool = False

    def __contains__(self, value: float) -> bool:
        above = value > self.low if self.open_low else value >= self.low
        return above and value <= self.high and math.isfinite(value)

    def __str__(self) -> str:
        if not math.isfinite(self.low):
            return "a finite number"
        low = f"{'above' if self.open_low else 'at least'} {self.low:g}"
        return low if self.high == math.inf else f"{low} and at most {self.high:g}"

    def expected(self, value: float) -> str:
        """The words for `value`, which is not in the range: only a float can be infinite, and only then is it worth saying."""
        unbounded = math.isfinite(self.low) and self.high == math.inf
        return f"{self} and finite" if unbounded and not math.isfinite(value) else str(self)


SIZE, COUNT, LIMIT, POSITIVE, SHARE = Range(1), Range(0), Range(-1), Range(0, open_low=True), Range(0, 1)
NUMBER = Range(-math.inf)

RUN_NAMES: dict[str, Sequence[str]] = {
    "algorithm.kl_penalty": KL_ESTIMATORS,
    "algorithm.kl_ctrl.type": ("fixed", "adaptive"),
    "algorithm.singleton": ("zero", "raw"),
    "rollout.sampling": SAMPLINGS,
    "rollout.tree.select": TREE_SELECTIONS,
    "reward.team_scope": TEAM_SCOPES,
    "reward.shaping": SHAPINGS,
    "reward.propagation.mode": PROPAGATIONS,
    "critic.view": VIEWS,
    "critic.model.attn_implementation": ATTENTION_NAMES,
    "trainer.controller": ("ray", "local"),
    "trainer.resource_pool": ("shared", "dedicated"),
    "trainer.device": ("auto", "cpu", "cuda"),
    "trainer.resume_mode": ("auto", "disable", "resume_path"),
}
RUN_NUMBERS: dict[Range, Sequence[str]] = {
    SIZE: (
        "data.train_batch_size", "data.max_prompt_length", "data.max_response_length", "env.rollout.n", "env.rollout.val_n",
        "env.max_steps", "trainer.nnodes", "trainer.n_gpus_per_node", "trainer.total_epochs",
        "critic.joint_prompt_length", "reward.propagation.theta_window", "rollout.env_threads",
    ),
    COUNT: (
        "data.val_batch_size", "data.seed", "env.history_length", "trainer.max_ckpt_to_keep", "trainer.num_threads",
        "trainer.critic_warmup",
        "rollout.max_concurrent_episodes", "reward.overlong_buffer.len",
        "algorithm.kl_ctrl.kl_coef", "reward.alpha", "reward.overlong_buffer.penalty_factor",
    ),
    NUMBER: ("reward.shaping_threshold",),
    LIMIT: (
        "data.train_max_samples", "data.val_max_samples", "trainer.total_training_steps", "trainer.save_freq", "trainer.test_freq",
        "trainer.log_trajectories", "trainer.total_generated_tokens",
    ),
    POSITIVE: ("rollout.tree.temperature", "rollout.episode_timeout_s", "rollout.call_timeout_s", "trainer.worker_timeout_s",
               "algorithm.kl_ctrl.horizon",
               "algorithm.kl_ctrl.target_kl", "critic.cliprange_value",
               "ray_init.object_store_memory_mb", "sandbox.request_timeout_s"),
    SHARE: (
        "rollout.max_failure_rate", "rollout.tree.epsilon", "reward.shaping_gamma", "reward.propagation.gamma", "reward.propagation.theta",
        "reward.propagation.theta_quantile", "reward.propagation.min_pass_rate", "reward.propagation.theta_step",
        "reward.propagation.theta_fall",
    ),
}  # fmt: skip
# As a loss every estimator also has a straight-through form; in the reward, which has no gradient, that would change nothing.
KL_LOSSES = (*KL_ESTIMATORS, *(f"{name}+" for name in KL_ESTIMATORS))
# Of what is trained: under `actor_rollout_ref.actor` and under `critic`.
TRAINED_NAMES: dict[str, Sequence[str]] = {
    "loss_agg_mode": LOSS_AGG_MODES,
    "optim.lr_scheduler_type": SCHEDULES,
}
FSDP_NAMES: dict[str, Sequence[str]] = {"model_dtype": DTYPE_NAMES, "dtype": ("auto", *DTYPE_NAMES)}
TRAINED_NUMBERS: dict[Range, Sequence[str]] = {
    SIZE: ("ppo_epochs", "ppo_max_token_len_per_gpu", "ppo_micro_batch_size_per_gpu"),
    COUNT: ("ppo_mini_batch_size", "optim.lr", "optim.weight_decay"),
    LIMIT: ("optim.lr_warmup_steps", "optim.total_training_steps"),
    POSITIVE: ("grad_clip", "optim.eps"),
    SHARE: ("optim.lr_warmup_steps_ratio", "optim.min_lr_ratio"),
}
MODEL_NAMES: dict[str, Sequence[str]] = {
    "model.attn_implementation": ATTENTION_NAMES,
    "actor.kl_loss_type": KL_LOSSES,
    "rollout.name": ("hf", "vllm"),
    "rollout.dtype": ("auto", *DTYPE_NAMES),
}
MODEL_NUMBERS: dict[Range, Sequence[str]] = {
    SIZE: (
        "model.lora_rank", "model.lora_alpha",
        "ref.log_prob_max_token_len_per_gpu", "ref.log_prob_micro_batch_size_per_gpu", "rollout.max_num_seqs", "rollout.update_bucket_mb",
        "rollout.tensor_model_parallel_size", "rollout.max_num_batched_tokens",
        "rollout.log_prob_max_token_len_per_gpu", "rollout.log_prob_micro_batch_size_per_gpu", "rollout.response_length",
        "rollout.prompt_length", "rollout.val_kwargs.response_length",
    ),
    COUNT: (
        "actor.clip_ratio", "actor.clip_ratio_low", "actor.clip_ratio_high", "rollout.num_threads",
        "actor.kl_loss_coef", "actor.invalid_action_penalty_coef",
    ),
    NUMBER: (
        "actor.entropy_coeff", "actor.tau_pos", "actor.tau_neg",
        "actor.policy_loss.clip_cov_ratio", "actor.policy_loss.clip_cov_lb", "actor.policy_loss.clip_cov_ub",
        "actor.policy_loss.kl_cov_ratio", "actor.policy_loss.ppo_kl_coef", "actor.policy_loss.dro_beta",
    ),
    POSITIVE: ("rollout.temperature", "rollout.val_kwargs.temperature"),
    Range(1, open_low=True): ("actor.clip_ratio_c",),
    Range(0, 1, open_low=True): ("rollout.top_p", "rollout.val_kwargs.top_p", "rollout.gpu_memory_utilization"),
}  # fmt: skip


def check_config(config: RunConfig, placement: Placement) -> None:
    """Look at every value that has a limited range or set of names, for the run and for each agent.

    Call it after plug-ins are imported, which may register estimators. Raises ConfigError for the first value that cannot be used.
    """
    _check(config, RUN_NAMES, RUN_NUMBERS, "")
    _check_trained(config.critic, "critic.", config.data.train_batch_size)
    _check_attention(config.critic.model, "critic.")
    _check_name("algorithm.adv_estimator", config.algorithm.adv_estimator, ESTIMATORS.names())
    _check_group_key("algorithm.group_by", config.algorithm.group_by or ())
    _check_per_agent(config, [agent.agent_id for agent in placement.trained])
    _check_reward(config, placement)
    _check_files(config)
    for name in sorted({*TEMPLATE_ARGUMENTS} & {*config.data.apply_chat_template_kwargs}):
        raise ConfigError(f"data.apply_chat_template_kwargs.{name} is set by the run; expected what the model's chat template reads")
    if config.trainer.resume_from_path and config.trainer.resume_mode != "resume_path":
        raise ConfigError(
            f"trainer.resume_from_path={config.trainer.resume_from_path} has no effect with "
            f"trainer.resume_mode={config.trainer.resume_mode}; "
            "set trainer.resume_mode=resume_path"
        )
    if config.trainer.total_generated_tokens == 0:
        raise ConfigError("trainer.total_generated_tokens=0 trains nothing; use -1 for no limit, or trainer.val_only=true to evaluate")
    if config.trainer.total_training_steps == 0:
        raise ConfigError("trainer.total_training_steps=0 trains nothing; use -1 for all epochs, or trainer.val_only=true to evaluate")
    for agent in placement.everyone:
        overridden = agent.config != _with_model(config.actor_rollout_ref, agent.config.model.path)
        where = f" (agent '{agent.agent_id}')" if overridden else ""
        _check_model(agent.config, config.data.train_batch_size, where)
        if isinstance(agent, AgentPlacement) and not agent.frozen:
            _check_attention(agent.config.model, "actor_rollout_ref.", where)
        _check_skipping(agent.config.actor, config.algorithm.rollout_correction.bypass_mode, where)


def _check_per_agent(config: RunConfig, agent_ids: Sequence[str]) -> None:
    try:
        check_per_agent(config.algorithm, agent_ids)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    for agent_id in agent_ids:
        mine = agent_config(config.algorithm, agent_id)
        for name in (mine.gdpo_reward_keys or ()) if mine.adv_estimator == "gdpo" else ():
            own = f".per_agent.{slug(agent_id)}" if "gdpo_reward_keys" in own_keys(config.algorithm, agent_id) else ""
            _check_name(f"algorithm{own}.gdpo_reward_keys", name, REWARD_FIELDS)
        _check_group_key(f"algorithm.per_agent.{slug(agent_id)}.group_by", own_keys(config.algorithm, agent_id).get("group_by") or ())


def _check_group_key(key: str, fields: Sequence[str]) -> None:
    """Refuse unknown fields, and a part of the batch that mixes tasks, which no method compares."""
    for name in fields:
        _check_name(key, name, SAMPLE_FIELDS)
    if not set(fields) & set(TASK_FIELDS) and not set(fields) <= set(BATCH_FIELDS):
        raise ConfigError(
            f"{key}=[{','.join(fields)}] compares replies to different tasks with each other: add one of {', '.join(TASK_FIELDS)}, or use "
            f"only {', '.join(BATCH_FIELDS)} (or []) for a baseline over the whole batch"
        )


def _check_reward(config: RunConfig, placement: Placement) -> None:
    reward = config.reward
    local_range = reward.propagation.local_range
    if len(local_range) != 2 or not -math.inf < local_range[0] < local_range[1] < math.inf:
        raise ConfigError(f"reward.propagation.local_range={local_range}: expected two numbers, the lowest local reward and a higher one")
    if reward.propagation.mode != "none" and reward.team_scope != "episode":
        raise ConfigError(
            f"reward.team_scope={reward.team_scope} contradicts reward.propagation.mode={reward.propagation.mode}, which shares out the "
            "reward of the whole episode; set reward.team_scope=episode or reward.propagation.mode=none"
        )
    buffer = reward.overlong_buffer
    for agent in placement.agents:
        limit = agent.config.rollout.response_length or config.data.max_response_length
        if buffer.enable and buffer.len > limit:
            raise ConfigError(
                f"reward.overlong_buffer.len={buffer.len} is more than the {limit} tokens that agent '{agent.agent_id}' may write: even "
                "an empty reply would pay; choose a smaller one"
            )


def _check_model(config: ActorRolloutRefConfig, train_batch_size: int, where: str) -> None:
    _check(config, MODEL_NAMES, MODEL_NUMBERS, "actor_rollout_ref.", where)
    loss_mode = config.actor.policy_loss.loss_mode
    _check_name("actor_rollout_ref.actor.policy_loss.loss_mode", loss_mode, POLICY_LOSSES.names(), where)
    for key in ("rollout.top_k", "rollout.val_kwargs.top_k"):
        value = value_at(config, key)
        if value != -1 and value < 1:
            raise ConfigError(f"actor_rollout_ref.{key}={value}{where}: expected -1 (all tokens) or at least 1")
    for key in ("rollout.stop", "rollout.val_kwargs.stop"):
        value = value_at(config, key) or []
        if not all(value):
            raise ConfigError(f"actor_rollout_ref.{key}={list(value)}{where}: an empty text would end every reply")
    _check_trained(config.actor, "actor_rollout_ref.actor.", train_batch_size, where)


def _check_attention(model: TrainedModelConfig, prefix: str, where: str = "") -> None:
    name = model.attn_implementation
    if name == "eager" and model.use_remove_padding:
        raise ConfigError(
            f"{prefix}model.attn_implementation=eager{where} cannot run packed rows; set {prefix}model.use_remove_padding=false as well"
        )
    if name == "flash_attention_2" and find_spec("flash_attn") is None:
        raise ConfigError(
            f"{prefix}model.attn_implementation=flash_attention_2{where}: the package flash_attn is not installed; pip install flash-attn, "
            f"or set {prefix}model.attn_implementation=auto"
        )


def _check_skipping(config: ActorConfig, bypass: bool, where: str) -> None:
    """Rows without advantage may be left out only where nothing pulls on them, and where the loss counts no row by its log-probs."""
    loss_mode = config.policy_loss.loss_mode
    if config.skip_zero_advantages and bypass:
        raise ConfigError(
            f"actor_rollout_ref.actor.skip_zero_advantages=true{where} contradicts algorithm.rollout_correction.bypass_mode=true, which "
            "rejects, ranks and weighs tokens of the whole mini-batch by log-probs that are not computed for rows left out; turn one off"
        )
    pulls = {
        "entropy_coeff": bool(config.entropy_coeff),
        "use_kl_loss": config.use_kl_loss,
        f"policy_loss.loss_mode={loss_mode}": POLICY_LOSSES.traits(loss_mode).uses_every_row,
    }
    if config.skip_zero_advantages and any(pulls.values()):
        raise ConfigError(
            f"actor_rollout_ref.actor.skip_zero_advantages=true{where}: rows without advantage have a gradient by "
            f"{', '.join(name for name, holds in pulls.items() if holds)}; leave one of them out"
        )


def _check_trained(config: ActorConfig | CriticConfig, prefix: str, train_batch_size: int, where: str = "") -> None:
    _check(config, TRAINED_NAMES, TRAINED_NUMBERS, prefix, where)
    section = "fsdp" if isinstance(config, CriticConfig) else "fsdp_config"  # verl's names of the same thing
    _check(getattr(config, section), FSDP_NAMES, {}, f"{prefix}{section}.", where)
    if len(config.optim.betas) != 2 or not all(0 <= beta < 1 for beta in config.optim.betas):
        raise ConfigError(f"{prefix}optim.betas={config.optim.betas}{where}: expected two numbers from 0 to below 1")
    mini = config.ppo_mini_batch_size
    if mini and (mini > train_batch_size or train_batch_size % mini):
        raise ConfigError(
            f"{prefix}ppo_mini_batch_size={mini}{where} does not divide data.train_batch_size={train_batch_size}; both "
            "count tasks: choose a divisor, or 0 for one update a step"
        )


def _check_files(config: RunConfig) -> None:
    for key, files in (("data.train_files", config.data.train_files), ("data.val_files", config.data.val_files)):
        listed = files if isinstance(files, list) else [files] if files is not None else []
        if not all(isinstance(file, str) and file for file in listed):
            raise ConfigError(f"{key}={files!r}: expected a parquet or jsonl file, or a list of them")


def _check(config: Any, names: dict[str, Sequence[str]], numbers: dict[Range, Sequence[str]], prefix: str, where: str = "") -> None:
    for key, known in names.items():
        _check_name(f"{prefix}{key}", value_at(config, key), known, where)
    for allowed, keys in numbers.items():
        for key in keys:
            value = value_at(config, key)
            if value is not None and value not in allowed:
                raise ConfigError(f"{prefix}{key}={value}{where}: expected {allowed.expected(value)}")


def _check_name(key: str, value: str, known: Iterable[str], where: str = "") -> None:
    known = list(known)
    if value not in known:
        raise ConfigError(f"{key}={value!r}{where}: expected one of {', '.join(known)}{did_you_mean(value, known)}")


def _with_model(base: ActorRolloutRefConfig, path: str | None) -> ActorRolloutRefConfig:
    return replace(base, model=replace(base.model, path=path))
