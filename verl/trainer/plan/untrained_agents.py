"""`agent.frozen` and `agent.api`: agents that are never trained."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

from verl.trainer.config import AgentConfig, ApiConfig
from verl.trainer.config.spec import ConfigError, with_values
from verl.trainer.plan.agent_overrides import PlacementError
from verl.utils.names import did_you_mean, slug


def frozen_agents(agent: AgentConfig) -> list[str]:
    """Return the agents of `agent.frozen`, in the order of the team. Raises PlacementError for an
    unknown or repeated name.
    """
    frozen_names = by_agent("agent.frozen", list(agent.frozen), agent.agent_ids)
    return [name for name in agent.agent_ids if name in frozen_names]


def api_agents(agent: AgentConfig) -> dict[str, ApiConfig]:
    """Return the config of each agent in `agent.api`, in the order of the team.

    Raises:
        PlacementError: an unknown agent, one that is also frozen, an unknown or missing key, or an
            invalid value.
    """
    api_names = by_agent("agent.api", list(agent.api), agent.agent_ids)
    both = [name for name in frozen_agents(agent) if name in api_names]
    if both:
        raise PlacementError(
            f"agent.frozen and agent.api both name agent '{both[0]}': an API agent has no model "
            "here; remove it from agent.frozen"
        )
    return {
        name: _api_config(f"agent.api.{api_names[name]}", agent.api[api_names[name]])
        for name in agent.agent_ids
        if name in api_names
    }


def trained_agents(agent: AgentConfig) -> list[str]:
    """Return the trained agents, in the order of the team. Raises as `frozen_agents` and
    `api_agents` do.
    """
    others = {*frozen_agents(agent), *api_agents(agent)}
    return [name for name in agent.agent_ids if name not in others]


def by_agent(key: str, agent_names: Iterable[str], agent_ids: Iterable[str]) -> dict[str, str]:
    """Return agent -> the name or slug in `agent_names`. Raises PlacementError for an unknown or
    repeated name.
    """
    names = {name: agent_id for agent_id in agent_ids for name in (agent_id, slug(agent_id))}
    name_by_agent: dict[str, str] = {}
    for name in agent_names:
        if name not in names:
            raise PlacementError(
                f"{key}: no agent {name!r}{did_you_mean(name, names)}; agents are "
                f"{list(dict.fromkeys(names.values()))}"
            )
        if names[name] in name_by_agent:
            raise PlacementError(f"{key} names agent '{names[name]}' twice; keep one")
        name_by_agent[names[name]] = name
    return name_by_agent


def api_key(where: str, api: ApiConfig, environment: Mapping[str, str] | None = None) -> str | None:
    """Return the API key from the environment variable `api_key_env` of the section `where`; None
    if `api_key_env` is null.

    Raises ConfigError if the variable is not set.
    """
    if api.api_key_env is None:
        return None
    key = (os.environ if environment is None else environment).get(api.api_key_env, "").strip()
    if not key:
        raise ConfigError(
            f"{where}.api_key_env={api.api_key_env}: this environment variable is not set; export "
            f"it, or set {where}.api_key_env=null for a server without a key"
        )
    return key


def _api_config(where: str, section: Any) -> ApiConfig:
    if any("key" in str(name) and name != "api_key_env" for name in section):
        raise PlacementError(
            f"{where}: set the API key in the environment; {where}.api_key_env names the variable"
        )
    api = with_values(ApiConfig(), section, where)
    if not api.base_url:
        raise PlacementError(
            f"{where}.base_url is missing; give the address of an OpenAI-compatible server, e.g. "
            "http://127.0.0.1:8000/v1"
        )
    if not api.model:
        raise PlacementError(
            f"{where}.model is missing; give the model name on the server at {where}.base_url"
        )
    return api
