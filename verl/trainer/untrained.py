"""`agent.frozen` and `agent.api`: agents that take part and are never trained."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any
from urllib.parse import urlsplit

from verl.trainer.agent_overrides import PlacementError
from verl.trainer.config import AgentConfig, ApiConfig
from verl.utils.names import did_you_mean, slug

# Fields of a request that the run fills in itself.
OF_THE_RUN = ("messages", "model", "n", "stream")


def frozen_agents(agent: AgentConfig) -> list[str]:
    """The agents of `agent.frozen`, in the order of the team. Raises PlacementError for a name that no agent has, or one given twice."""
    found = by_agent("agent.frozen", list(agent.frozen), agent.agent_ids)
    return [name for name in agent.agent_ids if name in found]


def api_agents(agent: AgentConfig) -> dict[str, ApiConfig]:
    """What `agent.api` says of each agent in it, in the order of the team.

    Raises:
        PlacementError: a name that no agent has or that is frozen as well, an unknown or missing key, or a value that cannot be used.
    """
    found = by_agent("agent.api", list(agent.api), agent.agent_ids)
    both = [name for name in frozen_agents(agent) if name in found]
    if both:
        raise PlacementError(f"agent.frozen and agent.api both name agent '{both[0]}': one behind an API has no model here; leave it out")
    return {name: _api_config(f"agent.api.{found[name]}", agent.api[found[name]]) for name in agent.agent_ids if name in found}


def trained_agents(agent: AgentConfig) -> list[str]:
    """The agents that learn, in the order of the team. Raises as `frozen_agents` and `api_agents` do."""
    others = {*frozen_agents(agent), *api_agents(agent)}
    return [name for name in agent.agent_ids if name not in others]


def by_agent(key: str, given: Iterable[str], agent_ids: Iterable[str]) -> dict[str, str]:
    """Agent -> the name or slug by which it was given. Raises PlacementError for a name that no agent has, or one given twice."""
    names = {name: agent_id for agent_id in agent_ids for name in (agent_id, slug(agent_id))}
    found: dict[str, str] = {}
    for name in given:
        if name not in names:
            raise PlacementError(f"{key}: no agent {name!r}{did_you_mean(name, names)}; agents are {list(dict.fromkeys(names.values()))}")
        if names[name] in found:
            raise PlacementError(f"{key} names agent '{names[name]}' twice; keep one")
        found[names[name]] = name
    return found


def _api_config(where: str, given: Any) -> ApiConfig:
    known = {f.name for f in fields(ApiConfig)}
    if not isinstance(given, Mapping):
        raise PlacementError(f"{where}: expected keys such as {where}.base_url=http://127.0.0.1:8000/v1; known: {', '.join(sorted(known))}")
    for name in given:
        if name not in known:
            hint = "; the key itself stays in the environment, api_key_env names the variable" if "key" in str(name) else ""
            raise PlacementError(f"{where}.{name}: no such key{did_you_mean(name, known)}{hint}; known: {', '.join(sorted(known))}")
    api = ApiConfig()
    for name, value in given.items():
        setattr(api, str(name), _typed(f"{where}.{name}", value, getattr(api, str(name))))
    _check_values(where, api)
    return api


def _typed(where: str, value: Any, default: Any) -> Any:
    """`value` if it has the type of the default: a number for a number, text for text or for None."""
    if isinstance(default, float) and isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    expected = str if default is None else type(default)
    if (default is None and value is None) or type(value) is expected:
        return value
    if isinstance(default, dict) and isinstance(value, Mapping):
        return dict(value)
    raise PlacementError(f"{where} is {type(value).__name__}, expected {expected.__name__}")


def _check_values(where: str, api: ApiConfig) -> None:
    if not api.base_url:
        raise PlacementError(f"{where}.base_url is missing; give the address of an OpenAI-compatible server, e.g. http://127.0.0.1:8000/v1")
    if not api.model:
        raise PlacementError(f"{where}.model is missing; give the name that the server at {where}.base_url has for its model")
    try:
        url = urlsplit(api.base_url)
        port_is_a_number = url.port is None or url.port >= 0
    except ValueError:
        port_is_a_number = False
    if not port_is_a_number or url.scheme not in ("http", "https") or not url.hostname or url.query or url.fragment:
        raise PlacementError(f"{where}.base_url: expected http://host[:port]/path, e.g. http://127.0.0.1:8000/v1")
    if url.username or url.password:
        raise PlacementError(f"{where}.base_url holds a user or a password, which would be written to config.yaml; use {where}.api_key_env")
    limits = {
        "request_timeout_s": (0 < api.request_timeout_s < math.inf, "above 0 and finite"),
        "max_retries": (api.max_retries >= 0, "at least 0"),
        "retry_delay_s": (0 <= api.retry_delay_s < math.inf, "at least 0 and finite"),
        "max_concurrent_requests": (api.max_concurrent_requests >= 1, "at least 1"),
    }
    for name, (holds, expected) in limits.items():
        if not holds:
            raise PlacementError(f"{where}.{name}={getattr(api, name)}: expected {expected}")
    for name in OF_THE_RUN:
        if name in api.extra_body:
            raise PlacementError(f"{where}.extra_body.{name} is set by the run; leave it out")
