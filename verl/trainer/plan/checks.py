"""Checks across keys: invalid combinations are found before torch is imported, which takes seconds.

Checks of a single key are part of its declaration (`verl.trainer.config.spec`);
`verl.trainer.plan.effects` finds keys without effect. What needs names of a team, models or data is
checked by `agent_system.launch.checks.check_run`, which calls `resolve`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from importlib.util import find_spec
from typing import Any

from verl.trainer.config import (
    ActorRolloutRefConfig,
    AgentConfig,
    AlgorithmConfig,
    AsyncTrainingConfig,
    CollectConfig,
    CriticConfig,
    GatewayConfig,
    RewardConfig,
    RolloutCorrectionConfig,
    RunConfig,
    TrainedModelConfig,
    TrainerConfig,
)
from verl.trainer.config.algorithm import REWARD_FIELDS, SAMPLE_FIELDS
from verl.trainer.config.reward import known_terms
from verl.trainer.config.spec import ConfigError, IneffectiveKeyError, as_typed, check_values, followers
from verl.trainer.plan.agent_overrides import PlacementError
from verl.trainer.plan.agents import AgentPlan, averages_trajectories, own_keys
from verl.trainer.plan.devices import Devices, engine_pool
from verl.trainer.plan.effects import check_effect
from verl.trainer.plan.group_checks import check_filter_groups, check_sampling, check_signal
from verl.trainer.plan.placement import BASE_KEYS, AgentPlacement, ApiPlacement, Placement, build_placement
from verl.trainer.plan.registry import POLICY_LOSSES
from verl.trainer.plan.run import RunPlan
from verl.trainer.plan.untrained_agents import api_key
from verl.utils.names import did_you_mean, slug, value_at

logger = logging.getLogger(__name__)

# Beginnings of the own keys that are read of a frozen agent, those of serving; ignored are those
# that only matter beside a trainer.
READ_OF_FROZEN = ("model.path", "model.tokenizer_path", "model.trust_remote_code", "rollout.")
IGNORED_OF_FROZEN = (
    "rollout.log_prob_",
    "rollout.update_bucket_mb",
    "rollout.weight_transfer",
    "rollout.free_cache_engine",
)
# Of a frozen agent on a base model with trained adapters, also the keys that must be equal for all
# agents of the base.
READ_OF_FROZEN_ON_A_BASE = (*READ_OF_FROZEN, *BASE_KEYS)
IGNORED_OF_FROZEN_ON_A_BASE = ("rollout.log_prob_",)
# Of an agent behind an API: those that are sent in a request.
READ_OF_API = (
    "rollout.temperature",
    "rollout.top_p",
    "rollout.response_length",
    "rollout.stop",
    "rollout.val_kwargs.",
)
IGNORED_OF_API = ("rollout.val_kwargs.top_k",)


def resolve(config: RunConfig) -> RunPlan:
    """Return the plan of a run, after a check of every key by its declaration, and of the keys
    against each other. No model or data are read.

    Call it after plug-ins are imported, which may register estimators and losses.

    Raises ConfigError for the first error.
    """
    check_values(config)
    agent = config.agent
    algorithm = config.algorithm
    reward = config.reward
    rollout = config.rollout
    trainer = config.trainer
    models = config.actor_rollout_ref
    placement = build_placement(agent, models)
    if reward.model.kind is not None:
        from verl.trainer.plan.reward_model import with_reward_model  # of this key alone

        placement = with_reward_model(placement, reward, agent, models)
    check_untrained(agent, trainer, models, placement)
    _check_agent_names(algorithm, placement)
    plan = RunPlan.of(config, placement)
    _check_per_agent(algorithm, reward, plan)
    check_reward(reward, plan)
    _check_models(config, plan)
    check_filter_groups(algorithm, config.env, plan)
    check_sampling(algorithm, reward, rollout, plan)
    if plan.repeats:
        from verl.trainer.plan.repeats import check_repeats  # of rollout.repeat_calls alone

        check_repeats(config.async_training.mode, config.env.rollout.n, plan)
    check_rollout_correction(algorithm, config.async_training, config.gateway, plan)
    # The defaults contradict no other key.
    if config.async_training != AsyncTrainingConfig():
        # of these keys alone
        from verl.trainer.ppo.asynchronous.check_keys import check_async_training

        check_async_training(config, plan)
    check_critic_keys(config.critic, plan)
    check_effect(config, plan)
    check_signal(config, plan)
    check_engine_spans(trainer, rollout, plan)
    return plan


def _setting(agent: AgentPlacement | ApiPlacement, name: str) -> str:
    """Return `key=value` of an agent, with its own key if it has one."""
    who = f" (agent '{agent.agent_id}')" if name in agent.own_keys else ""
    value = value_at(agent.config, name)
    return f"{agent.key(name)}={str(value).lower() if isinstance(value, bool) else value}{who}"


def check_untrained(
    agent: AgentConfig, trainer: TrainerConfig, actor_rollout_ref: ActorRolloutRefConfig, placement: Placement
) -> None:
    """Check `agent.frozen`, `agent.api` and other keys of these agents."""
    if not trainer.val_only and not placement.trained:
        raise ConfigError(
            f"agent.frozen={list(agent.frozen)} and agent.api leave no agent of "
            f"{list(agent.agent_ids)} to train; take one out, or set trainer.val_only=true to "
            "evaluate"
        )
    bases = {spec.wg_id for spec in placement.groups if spec.trained}
    for row in placement.agents:
        if row.frozen:
            on_a_base = row.wg_id in bases
            read = READ_OF_FROZEN_ON_A_BASE if on_a_base else READ_OF_FROZEN
            ignored = IGNORED_OF_FROZEN_ON_A_BASE if on_a_base else IGNORED_OF_FROZEN
            _check_own_keys(actor_rollout_ref, row, "frozen", read, ignored)
    for remote in placement.api:
        _check_own_keys(actor_rollout_ref, remote, "behind an API", READ_OF_API, IGNORED_OF_API)
        api_key(f"agent.api.{slug(remote.agent_id)}", remote.api)


def _check_own_keys(
    actor_rollout_ref: ActorRolloutRefConfig,
    agent: AgentPlacement | ApiPlacement,
    what: str,
    read: Sequence[str],
    ignored: Sequence[str],
) -> None:
    for key in sorted(agent.own_keys):
        mine = value_at(agent.config, key)
        has_effect = key.startswith(tuple(read)) and not key.startswith(tuple(ignored))
        if not has_effect and mine != value_at(actor_rollout_ref, key):
            raise IneffectiveKeyError(
                f"agent.agent_specific_parameters.{key} gives agent '{agent.agent_id}' {mine}, "
                f"which has no effect: it is {what}; give it null"
            )


def _check_agent_names(algorithm: AlgorithmConfig, placement: Placement) -> None:
    """Check that `algorithm.per_agent` names trained agents, each once."""
    agents = [agent.agent_id for agent in placement.trained]
    others = {name: row.agent_id for row in placement.everyone for name in (row.agent_id, slug(row.agent_id))}
    names = {name: agent for agent in agents for name in (agent, slug(agent))}
    name_by_agent: dict[str, str] = {}
    for name in algorithm.per_agent:
        if name in others and name not in names:
            raise IneffectiveKeyError(
                f"algorithm.per_agent.{name} has no effect: agent '{others[name]}' is not trained; "
                "leave it out"
            )
        if name not in names:
            raise ConfigError(
                f"algorithm.per_agent.{name}: no such agent{did_you_mean(name, names)}; trained "
                f"agents are {agents}"
            )
        if names[name] in name_by_agent:
            raise ConfigError(
                f"algorithm.per_agent names agent '{names[name]}' twice: "
                f"{name_by_agent[names[name]]} and {name}; keep one"
            )
        name_by_agent[names[name]] = name


def _check_per_agent(algorithm: AlgorithmConfig, reward: RewardConfig, plan: RunPlan) -> None:
    """Check the keys of `algorithm` with the own values of each agent."""
    agents = [agent.agent_id for agent in plan.trained]
    for agent in plan.trained:
        agent_keys = own_keys(algorithm, agent.agent_id)
        where = f"algorithm.per_agent.{slug(agent.agent_id)}" if agent_keys else "algorithm"
        check_estimator(agent, agents, where)
        _check_gdpo_rewards(reward, agent.algorithm, where)
    _check_unread_rewards(algorithm, reward, plan)
    _check_whole_batch(plan)


def check_estimator(agent: AgentPlan, agents: Sequence[str], where: str = "algorithm") -> None:
    """Check the arguments of one agent's estimator, and that it supports the statistics and weights
    that are set.

    Args:
        agent: plan of the agent.
        agents: trained agents.
        where: prefix of keys in messages.
    """
    settings = agent.algorithm
    estimator = agent.estimator
    keys_ = settings.gdpo_reward_keys
    weights = settings.gdpo_reward_weights
    if estimator == "gdpo" and not keys_:
        raise ConfigError(
            f"{where}.adv_estimator=gdpo needs {where}.gdpo_reward_keys, such as [team_reward,local_reward]"
        )
    if weights is not None and len(weights) != len(keys_ or ()):
        raise ConfigError(
            f"{where}.gdpo_reward_weights has {len(weights)} entries for {len(keys_ or ())} "
            "gdpo_reward_keys; give one each"
        )
    if settings.statistics_over == "trajectories" and not agent.takes("traj_index"):
        raise ConfigError(
            f"{where}.statistics_over=trajectories: estimator '{estimator}' cannot average "
            "trajectories first; use auto or samples"
        )
    traits = agent.traits
    if settings.call_weighting == "trajectory" and traits.weighs_calls_by:
        raise ConfigError(
            f"{where}.call_weighting=trajectory has no effect: {estimator} weighs calls by "
            f"{where}.{traits.weighs_calls_by}; use sample"
        )
    if (
        settings.call_weighting == "trajectory"
        and traits.cannot_weigh
        and not averages_trajectories(settings, estimator)
    ):
        raise ConfigError(
            f"{where}.call_weighting=trajectory: {estimator} {traits.cannot_weigh} and cannot "
            f"weigh them; use sample, or {where}.statistics_over=trajectories"
        )
    if estimator == "m_grpo" and settings.m_grpo.main_agent not in agents:
        raise ConfigError(
            f"{where}.m_grpo.main_agent={settings.m_grpo.main_agent!r}: expected one of {list(agents)}"
        )


def _check_gdpo_rewards(reward: RewardConfig, settings: Any, where: str) -> None:
    """Raise ConfigError for a reward that no sample can have; names that reward functions return
    are known after the first episodes.
    """
    terms = known_terms(reward)
    for name in settings.gdpo_reward_keys or ():
        if name not in REWARD_FIELDS and (name in SAMPLE_FIELDS or (terms is not None and name not in terms)):
            reward_names = [*REWARD_FIELDS, *(terms or ())]
            functions = (
                ", or a term that a reward function returns (reward.custom_reward_function.path)"
                if terms is not None
                else ""
            )
            raise ConfigError(
                f"{where}.gdpo_reward_keys={name!r}: expected one of "
                f"{', '.join(reward_names)}{did_you_mean(name, reward_names)}{functions}"
            )


def _check_unread_rewards(algorithm: AlgorithmConfig, reward: RewardConfig, plan: RunPlan) -> None:
    """Raise IneffectiveKeyError for a part of the reward that no agent learns from: GDPO reads the
    columns of its keys alone.
    """
    # dynamic sampling and committed candidates compare rewards themselves
    if algorithm.filter_groups.enable or plan.committed:
        return
    trained = [agent.agent_id for agent in plan.trained]
    read = {
        agent.agent_id: list(agent.algorithm.gdpo_reward_keys or ())
        for agent in plan.trained
        if agent.estimator == "gdpo"
    }
    penalized = [agent for agent in plan.trained if agent.config.actor.invalid_action_penalty_coef]
    parts = [
        *(
            (_setting(agent, "actor.invalid_action_penalty_coef"), [agent.agent_id], "invalid_penalty")
            for agent in penalized
        ),
        *(
            [(f"reward.overlong_buffer.len={reward.overlong_buffer.len}", trained, "overlong_penalty")]
            if reward.overlong_buffer.len is not None
            else []
        ),
        *(
            [(f"algorithm.kl_ctrl.kl_coef={algorithm.kl_ctrl.kl_coef}", trained, "")]
            if algorithm.use_kl_in_reward
            else []
        ),
    ]
    for setting, names, column in parts:
        carried = ("reward", "step_reward", column) if column else ()
        if names and all(name in read and not set(carried) & set(read[name]) for name in names):
            fix = f"add one of {', '.join(carried)} to them" if carried else "none of them has it"
            raise IneffectiveKeyError(
                f"{setting} has no effect: gdpo learns from "
                f"algorithm.gdpo_reward_keys={read[names[0]]} alone; {fix}"
            )


def _check_whole_batch(plan: RunPlan) -> None:
    """Raise ConfigError for agents of one policy with different settings of an estimator that
    computes over all rows of a policy.

    Rewards of GDPO may differ: then the rewards of each agent are whitened apart.
    """
    first_agents: dict[tuple[str, str], tuple[str, AlgorithmConfig]] = {}
    for agent in plan.trained:
        mine = replace(agent.algorithm, gdpo_reward_keys=None, gdpo_reward_weights=None)
        name = agent.estimator
        first, theirs = first_agents.setdefault((agent.policy_id, name), (agent.agent_id, mine))
        differing = [
            field.name for field in fields(mine) if getattr(mine, field.name) != getattr(theirs, field.name)
        ]
        if differing and agent.traits.whole_batch:
            raise ConfigError(
                f"algorithm.per_agent: agents '{first}' and '{agent.agent_id}' share policy "
                f"'{agent.policy_id}' but differ in {', '.join(differing)}, while {name} computes "
                "over all rows of a policy; give them one value, or a policy each"
            )


def check_reward(reward: RewardConfig, plan: RunPlan) -> None:
    """Check keys under `reward` for contradictions with each other or with an agent's length limit."""
    buffer = reward.overlong_buffer
    if reward.model.kind == "api":
        api_key("reward.model.api", reward.model.api)
    if reward.propagation.mode != "none" and reward.team_scope != "episode":
        raise ConfigError(
            f"reward.team_scope={reward.team_scope} contradicts "
            f"reward.propagation.mode={reward.propagation.mode}, which propagates the reward of "
            "the whole episode; set reward.team_scope=episode or reward.propagation.mode=none"
        )
    if "discount" in reward.shaping and not 0 <= (reward.shaping_by or 0) <= 1:
        raise ConfigError(
            f"reward.shaping_by={reward.shaping_by}: expected at least 0 and at most 1, the discount "
            f"factor of reward.shaping={reward.shaping}"
        )
    if reward.granularity == "token" and (reward.shaping != "default" or reward.propagation.mode != "none"):
        raise ConfigError(
            "reward.granularity=token places rewards on tokens as they are, but "
            f"reward.shaping={reward.shaping} and "
            f"reward.propagation.mode={reward.propagation.mode} change the reward of a whole "
            "reply; set reward.shaping=default and reward.propagation.mode=none, or "
            "reward.granularity=reply"
        )
    for agent in plan.agents:
        limit = agent.sampling.max_tokens
        if buffer.len is not None and buffer.len > limit:
            raise ConfigError(
                f"reward.overlong_buffer.len={buffer.len} is more than the {limit} tokens that "
                f"agent '{agent.agent_id}' may write: even an empty reply would be penalized; "
                "choose a smaller one"
            )


def _check_models(config: RunConfig, plan: RunPlan) -> None:
    tasks = config.data.train_batch_size
    for agent in plan.everyone:
        _check_mini_batch(
            agent.config.actor.ppo_mini_batch_size, _setting(agent, "actor.ppo_mini_batch_size"), tasks
        )
        check_skipping(config.algorithm, agent)
        if agent in plan.trained:
            dtype = "actor.fsdp_config.dtype"
            _check_attention(agent.config.model, dtype, lambda name, agent=agent: _setting(agent, name))  # type: ignore[misc]
        if (transfer := agent.config.rollout.weight_transfer) != "auto":  # which suits any place
            from verl.trainer.plan.transfer_check import check_transfer

            setting = _setting(agent, "rollout.weight_transfer")
            check_transfer(config.trainer, config.rollout, transfer, setting)
    if plan.critics:
        size = "ppo_mini_batch_size"
        _check_mini_batch(config.critic.ppo_mini_batch_size, _shown_of_critic(config, size), tasks)
        follows = _leader(config, "critic.model.attn_implementation") is not None
        _check_attention(
            config.critic.model, "fsdp.dtype", lambda name: _shown_of_critic(config, name, follows)
        )


def _leader(config: RunConfig, key: str) -> str | None:
    """Return the key whose value a key has; None for a key with a value of its own."""
    leader = followers(RunConfig).get(key)
    return leader if leader and value_at(config, leader) == value_at(config, key) else None


def _shown_of_critic(config: RunConfig, name: str, follows: bool = True) -> str:
    """Return `key=value` of critics, with the key of the policy if `follows` and they have its
    value.
    """
    key = f"critic.{name}"
    return f"{(_leader(config, key) if follows else None) or key}={as_typed(value_at(config, key))}"


def _check_mini_batch(size: int, setting: str, tasks: int) -> None:
    if size and (size > tasks or tasks % size):
        raise ConfigError(
            f"{setting} does not divide data.train_batch_size={tasks}; both count tasks (Dr. MAS "
            "counts rows): choose a divisor, 0 for one update per step, or the number of updates "
            "(ppo_mini_update_num)"
        )


def _check_attention(model: TrainedModelConfig, dtype: str, setting_of: Callable[[str], str]) -> None:
    """Raise ConfigError for an attention implementation that cannot run; `dtype` is the key of its
    dtype, `setting_of` returns `key=value`.
    """
    key = setting_of("model.attn_implementation")
    name = model.attn_implementation
    if name == "eager" and model.use_remove_padding is True:
        packed = setting_of("model.use_remove_padding").partition("=")[0]
        raise ConfigError(f"{key} cannot run packed rows; set {packed}=false as well")
    if name == "flash_attention_2" and find_spec("flash_attn") is None:
        raise ConfigError(
            f"{key}: the package flash_attn is not installed; pip install flash-attn, or set "
            f"{key.partition('=')[0]}=auto"
        )
    if name == "flash_attention_2" and "=fp32" in setting_of(dtype):
        raise ConfigError(
            f"{key} computes in 16 bits, not as {setting_of(dtype)}; set that to bf16, or "
            f"{key.partition('=')[0]}=auto"
        )


def check_skipping(algorithm: AlgorithmConfig, agent: AgentPlacement | ApiPlacement) -> None:
    """Raise ConfigError if rows with advantage 0 are skipped although they have a gradient or the
    loss needs their log-probs.
    """
    actor = agent.config.actor
    if not actor.skip_zero_advantages:
        return
    skipping = _setting(agent, "actor.skip_zero_advantages")
    loss_mode = actor.policy_loss.loss_mode
    if algorithm.rollout_correction.bypass_mode:
        raise ConfigError(
            f"{skipping} contradicts algorithm.rollout_correction.bypass_mode=true, which rejects, "
            "ranks and weights tokens of the whole mini-batch by log-probs that are not computed "
            "for skipped rows; turn one off"
        )
    gradients = {
        "entropy_coeff": bool(actor.entropy_coeff),
        "kl_loss_coef": actor.use_kl_loss,
        f"policy_loss.loss_mode={loss_mode}": POLICY_LOSSES.traits(loss_mode).uses_every_row,
    }
    if any(gradients.values()):
        raise ConfigError(
            f"{skipping}: rows with advantage 0 have a gradient with "
            f"{', '.join(name for name, holds in gradients.items() if holds)}; "
            "turn one of them off"
        )


def _check_bands(correction: RolloutCorrectionConfig) -> None:
    # of these keys alone
    from verl.trainer.ppo.correction_bounds import Band, parse_bounds, parse_modes

    try:
        bands = {"rollout_is_threshold": Band.parse(correction.rollout_is_threshold)}
        if correction.rollout_rs is not None:
            bounds = parse_bounds(parse_modes(correction.rollout_rs), correction.rollout_rs_threshold)
            bands |= {f"rollout_rs_threshold ({mode})": band for mode, band in bounds.items()}
    except (TypeError, ValueError) as error:
        raise ConfigError(f"algorithm.rollout_correction.{error}") from error
    for name, band in bands.items():
        if band.lower is not None and not band.lower <= 1 <= band.upper:
            raise ConfigError(
                f"algorithm.rollout_correction.{name}={band.lower:g}_{band.upper:g} excludes 1, "
                "the ratio of a token with equal log-probs in sampler and trainer, so no token is "
                "left; choose a lower bound of at most 1 and an upper bound of at least 1"
            )


def check_rollout_correction(
    algorithm: AlgorithmConfig, async_training: AsyncTrainingConfig, gateway: GatewayConfig, plan: RunPlan
) -> None:
    """Raise ConfigError for invalid bounds, a missing correction or keys of losses, and warn of
    bias that no correction removes.
    """
    correction = algorithm.rollout_correction
    mode = async_training.mode
    if not async_training.fresh and not (correction.bypass_mode or correction.corrects_batch):
        raise ConfigError(
            f"async_training.mode={mode} trains on samples of older weights, which needs an "
            "off-policy correction: set algorithm.rollout_correction.rollout_is, .rollout_rs or "
            ".m2po_tau, or .bypass_mode=true (docs/updates.md#sampler-against-trainer)"
        )
    if correction != RolloutCorrectionConfig():  # whose bands are right
        _check_bands(correction)
    if correction.bypass_mode and gateway.structured == "mask":
        raise ConfigError(
            "gateway.structured=mask needs the pass for old log-probs, which measures the "
            "probability that masks cut off, but algorithm.rollout_correction.bypass_mode=true "
            "skips it and clips the ratio to the masked policy; set bypass_mode=false"
        )
    for agent in plan.trained:
        _check_loss(algorithm, agent)
    _warn_of_truncation(plan)


def _check_loss(algorithm: AlgorithmConfig, agent: AgentPlan) -> None:
    """Raise ConfigError for an estimator that needs the missing pass for old log-probs, and for a
    loss without its keys.
    """
    bypass = algorithm.rollout_correction.bypass_mode
    estimator = agent.estimator
    if bypass and agent.needs("sum_pi_squared"):
        raise ConfigError(
            f"algorithm.adv_estimator={estimator} (agent '{agent.agent_id}') needs sum_pi_squared, "
            "which the pass for old log-probs computes and "
            "algorithm.rollout_correction.bypass_mode=true skips; set bypass_mode=false, or choose "
            "another estimator"
        )
    loss = agent.config.actor.policy_loss.loss_mode
    if estimator == "optimal_token_baseline" and agent.config.rollout.tool_samples == "sequence":
        raise ConfigError(
            f"{_setting(agent, 'rollout.tool_samples')}: "
            "algorithm.adv_estimator=optimal_token_baseline compares the tokens in one column, but "
            "tool messages of any length stand between them; use tir_optimal_token_baseline"
        )
    if loss == "bypass_mode" and not bypass:
        raise ConfigError(
            f"{agent.key('actor.policy_loss.loss_mode')}=bypass_mode (agent '{agent.agent_id}') "
            "needs algorithm.rollout_correction.bypass_mode=true"
        )
    for name in POLICY_LOSSES.traits(loss).positive:
        value = value_at(agent.config.actor, name)
        if value is None or not value > 0:
            raise ConfigError(
                f"{agent.key(f'actor.{name}')}={value} (agent '{agent.agent_id}'): the loss {loss} "
                "needs a positive number"
            )


def _warn_of_truncation(placement: Placement) -> None:
    """Warn of truncated sampling, which biases the gradient: log-probs are those before truncation,
    so no ratio shows the bias.
    """
    truncated = [
        a.agent_id for a in placement.trained if a.config.rollout.top_p < 1.0 or a.config.rollout.top_k != -1
    ]
    if truncated:
        logger.warning(
            "actor_rollout_ref.rollout.top_p/top_k truncate the sampling of %s: the update treats "
            "replies as samples of the full distribution, and algorithm.rollout_correction cannot "
            "correct this; use top_p=1.0 and top_k=-1 for an unbiased gradient",
            ", ".join(truncated),
        )


def check_critic_keys(critic: CriticConfig, plan: RunPlan) -> None:
    """Raise ConfigError for critics that are missing, not read, or unable to read a whole prompt."""
    for agent in plan.trained:
        name = agent.estimator
        if critic.enable is False and agent.needs_values:
            raise ConfigError(
                f"algorithm.adv_estimator={name} of agent '{agent.agent_id}' needs values, but "
                "critic.enable=false; set critic.enable=null, or choose an estimator without a "
                "critic"
            )
        if critic.enable and not agent.reads_values:
            raise ConfigError(
                f"critic.enable=true, but algorithm.adv_estimator={name} of agent "
                f"'{agent.agent_id}' reads no values: its critic would not be used; set "
                "critic.enable=null, or choose an estimator with a critic (gae)"
            )
        longest = agent.max_prompt_length
        if critic.joint_prompt_length is not None and longest > critic.joint_prompt_length:
            raise ConfigError(
                f"critic.joint_prompt_length={critic.joint_prompt_length} is less than the prompt "
                f"of agent '{agent.agent_id}' ({longest} tokens); it limits transcript and prompt "
                "together: choose a larger one"
            )


def check_engine_spans(trainer: TrainerConfig, rollout: CollectConfig, plan: RunPlan) -> None:
    """Raise PlacementError if engines of `rollout.tensor_model_parallel_size` devices do not fit
    the devices of a worker group.
    """
    pool = engine_pool(trainer, rollout)
    for spec in plan.groups:
        tp = spec.config.rollout.tensor_model_parallel_size
        group_devices = spec.engine_devices
        if tp == 1:
            continue
        name = "rollout.tensor_model_parallel_size"
        setting = plan.agent(spec.agent_ids[0]).key(name) if spec.agent_ids else f"actor_rollout_ref.{name}"
        key = f"{setting}={tp}"
        if trainer.controller == "local":
            raise PlacementError(
                f"{key} needs trainer.controller=ray: local runs one rank, an engine on {tp} "
                f"devices needs {tp}"
            )
        if group_devices.ranks % tp:
            raise PlacementError(
                f"{key} does not divide the {group_devices.ranks} devices of worker group "
                f"'{spec.wg_id}' ({pool.section}.nnodes * {pool.section}.n_gpus_per_node, or its "
                "part of them in trainer.pool_sizes); choose a divisor"
            )
        for first in range(group_devices.first, group_devices.first + group_devices.ranks, tp):
            if first // pool.per_node != (first + tp - 1) // pool.per_node:
                raise PlacementError(
                    f"{key}: an engine of worker group '{spec.wg_id}' would be on "
                    f"{Devices(first, tp, pool.section)}, which are on different nodes of "
                    f"{pool.per_node} ({pool.section}.n_gpus_per_node); choose a divisor of "
                    f"{pool.per_node}, and with trainer.pool_sizes let the devices before "
                    f"the group's first, number {group_devices.first}, be a multiple of it"
                )
