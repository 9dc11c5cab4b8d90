"""The agent side of a run: every agent bound to its policy or its server."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent_system.launch.before_models import orchestra_options
from agent_system.rollout.binding import AgentBinding
from agent_system.rollout.collector import Collector
from agent_system.rollout.remote import RemoteBinding
from agent_system.rollout.settings import CollectorSettings
from verl.models.loader import stop_token_ids
from verl.protocol.generate import RolloutError, SamplingParams
from verl.trainer.config import DataConfig, RewardConfig, RunConfig
from verl.trainer.config.algorithm import REWARD_FIELDS
from verl.trainer.config.reward_model import CLASSIFIER
from verl.trainer.config.spec import ConfigError
from verl.trainer.plan.agents import Sampling
from verl.trainer.plan.derived_values import prompt_length_key
from verl.trainer.plan.placement import AgentPlacement, Placement
from verl.trainer.plan.registry import ESTIMATORS
from verl.trainer.plan.run import RunPlan
from verl.trainer.plan.untrained_agents import api_key
from verl.utils.names import slug

if TYPE_CHECKING:
    from agent_system.env_workers import EnvWorkers
    from agent_system.reward.model import RewardModel

    # aiohttp, which runs without an API do not need
    from agent_system.rollout.endpoint import Endpoint

logger = logging.getLogger(__name__)
REWARD_MODEL = "the reward model"


def sampling_params(sampling: Sampling, stop_token_ids: Sequence[int] = ()) -> SamplingParams:
    """Return the sampling of an agent as engines and servers take it."""
    return SamplingParams(**vars(sampling), stop_token_ids=tuple(stop_token_ids))


def remote_bindings(plan: RunPlan) -> dict[str, RemoteBinding]:
    """Bind every agent behind an API to its server. Raise ConfigError when the environment variable
    of an API key is not set.
    """
    if not plan.api:
        return {}
    from agent_system.rollout.endpoint import Endpoint

    bindings = {}
    for row in plan.api:
        endpoint = Endpoint(row.agent_id, row.api, api_key(f"agent.api.{slug(row.agent_id)}", row.api))
        train, val = (sampling_params(sampling) for sampling in (row.sampling, row.val_sampling))
        bindings[row.agent_id] = RemoteBinding(row.agent_id, row.policy_id, endpoint, train, val)
    return bindings


def check_endpoints(reward: RewardConfig, plan: RunPlan) -> None:
    """Request one reply from the server of every agent and of the reward model. Raise ConfigError
    if one gives none.
    """
    servers = [("agent.api", binding.endpoint) for binding in remote_bindings(plan).values()]
    if reward.model.kind == "api":
        servers.append(("reward.model.api", _reward_endpoint(reward)))
    if not servers:
        return

    async def check_all() -> None:
        for where, endpoint in servers:
            try:
                await endpoint.check()
            except RolloutError as error:
                raise ConfigError(f"{error}; start the server, or correct {where}") from error

    asyncio.run(check_all())


def _reward_terms(plan: RunPlan) -> dict[str, list[str]]:
    """Return the rewards in `algorithm.gdpo_reward_keys` of each agent that are no fields of a
    sample.
    """
    terms_by_agent = {}
    for agent in plan.trained:
        if ESTIMATORS.reads(agent.estimator, "gdpo_reward_keys"):
            terms_by_agent[agent.agent_id] = [
                name for name in agent.algorithm.gdpo_reward_keys or () if name not in REWARD_FIELDS
            ]
    return terms_by_agent


def build_reward_model(
    data: DataConfig,
    reward: RewardConfig,
    placement: Placement,
    tokenizers: Mapping[str, Any],
    clients: Mapping[str, Any],
) -> RewardModel | None:
    """Return the model of `reward.model`, bound to its engine or its server; None without one.

    Raises:
        ConfigError: the environment variable of an API key is not set, or the template cannot be
            read.
        AgentSystemError: the template cannot be filled, or a tokenizer has no chat template.
    """
    settings = reward.model
    row = placement.reward_model
    if settings.kind is None:
        return None
    # reward models, which most runs do not have
    from agent_system.rollout.reward_models import Classifier, Judge

    if row is not None and settings.kind == CLASSIFIER:
        return Classifier(clients[row.wg_id], tokenizers[row.wg_id], settings)
    return Judge(
        _judge_binding(data, reward, row, tokenizers, clients),
        settings,
        _question(settings.template),
        data.seed,
    )


def _judge_binding(
    data: DataConfig,
    reward: RewardConfig,
    row: AgentPlacement | None,
    tokenizers: Mapping[str, Any],
    clients: Mapping[str, Any],
) -> AgentBinding | RemoteBinding:
    settings = reward.model
    sampling = SamplingParams(settings.response_length, settings.temperature)
    if row is None:
        return RemoteBinding(REWARD_MODEL, REWARD_MODEL, _reward_endpoint(reward), sampling, sampling)
    tokenizer = tokenizers[row.wg_id]
    template_kwargs = data.apply_chat_template_kwargs
    sampling = replace(
        sampling, stop_token_ids=stop_token_ids(str(row.config.model.path), tokenizer, template_kwargs)
    )
    names = (REWARD_MODEL, row.policy_id, row.wg_id)
    return AgentBinding(
        *names,
        clients[row.wg_id],
        tokenizer,
        sampling,
        sampling,
        settings.max_length,
        None,
        template_kwargs,
        False,
    )


def _reward_endpoint(reward: RewardConfig) -> Endpoint:
    from agent_system.rollout.endpoint import Endpoint

    api = reward.model.api
    return Endpoint(REWARD_MODEL, api, api_key("reward.model.api", api))


def _question(path: str | None) -> str:
    """Return the template of the judge's question. Raise ConfigError if its file cannot be read."""
    if path is None:
        from agent_system.rollout.reward_models import QUESTION

        return QUESTION
    try:
        return Path(path).expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"reward.model.template={path}: {error}; expected a text file with {{reply}} in it"
        ) from error


def agent_bindings(
    config: RunConfig, plan: RunPlan, tokenizers: Mapping[str, Any], clients: Mapping[str, Any]
) -> dict[str, AgentBinding | RemoteBinding]:
    """Bind every agent of a run to the client of its policy, or to its server."""
    bindings: dict[str, AgentBinding | RemoteBinding] = dict(remote_bindings(plan))
    structured = {group.wg_id for group in plan.groups if group.config.rollout.structured_outputs}
    for agent_id, row in plan.speakers.items():
        tokenizer = tokenizers[row.wg_id]
        stop = stop_token_ids(str(row.config.model.path), tokenizer, config.data.apply_chat_template_kwargs)
        bindings[agent_id] = AgentBinding(
            agent_id=agent_id,
            policy_id=row.policy_id,
            wg_id=row.wg_id,
            client=clients[row.wg_id],
            adapter=row.adapter,
            tokenizer=tokenizer,
            sampling=sampling_params(row.sampling, stop),
            val_sampling=sampling_params(row.val_sampling, stop),
            max_prompt_length=row.max_prompt_length,
            template_kwargs=config.data.apply_chat_template_kwargs,
            trained=not row.frozen,
            structured=row.wg_id in structured,
            prompt_length_key=prompt_length_key(config.data, config.actor_rollout_ref, row.config.rollout),
        )
    return {agent_id: bindings[agent_id] for agent_id in config.agent.agent_ids}


def recorded_share(count: int, groups: int, n: int) -> float:
    """Return the share of the groups that are recorded for readers: all, or enough that
    `trainer.log_trajectories` episodes of a step are among them.

    Args:
        count: `trainer.log_trajectories`.
        groups: groups of a step.
        n: episodes of a group.
    """
    if count <= 0:
        return 1.0 if count else 0.0
    groups_drawn = math.ceil(count / n)
    # those that a step writes are the first ones in the order by which groups are drawn
    return min(1.0, (groups_drawn + 3 * math.sqrt(groups_drawn)) / groups)


def collector_settings(config: RunConfig, plan: RunPlan) -> CollectorSettings:
    """Return the settings of a run's collector."""
    tree = replace(config.rollout.tree, k_per_agent=dict(plan.candidates))
    return CollectorSettings(
        seed=config.data.seed,
        experiment_name=config.trainer.experiment_name,
        reward=config.reward,
        invalid_action_penalty={
            a.agent_id: a.config.actor.invalid_action_penalty_coef
            for a in plan.trained
            if a.config.actor.invalid_action_penalty_coef
        },
        max_steps=config.env.max_steps,
        history_length=config.env.history_length,
        max_concurrent_episodes=config.rollout.max_concurrent_episodes,
        max_failure_rate=config.rollout.max_failure_rate,
        episode_timeout_s=config.rollout.episode_timeout_s,
        call_timeout_s=config.rollout.call_timeout_s,
        tree=tree if plan.tree else None,
        repeat_calls=plan.repeats,
        reward_terms=_reward_terms(plan),
        greedy_baselines=plan.greedy_candidates,
        tool_sequences=[a.agent_id for a in plan.agents if a.config.rollout.tool_samples == "sequence"],
        joint_prompt_length=(config.critic.joint_prompt_length or 0) if plan.critics else 0,
        recorded=recorded_share(
            config.trainer.log_trajectories, config.data.train_batch_size, config.env.rollout.n
        ),
    )


def build_collector(
    config: RunConfig,
    plan: RunPlan,
    tokenizers: Mapping[str, Any],
    clients: Mapping[str, Any],
    workers: EnvWorkers | None = None,
) -> Collector:
    """Bind every agent to the client of its policy, or to its server, and build the team's
    collector; environments run in `workers`.
    """
    return Collector.from_names(
        orchestra_type=config.agent.orchestra_type,
        env_name=config.env.env_name,
        bindings=agent_bindings(config, plan, tokenizers, clients),
        settings=collector_settings(config, plan),
        orchestra_options=orchestra_options(config.agent, config.gateway),
        env_params=config.env.params,
        workers=workers,
        reward_model=build_reward_model(config.data, config.reward, plan, tokenizers, clients),
    )
