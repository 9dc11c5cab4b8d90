"""Creation of a world from the options: registered environments, and entry points of others."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium

from agent_system.errors import AgentSystemError
from agent_system.workflows.farama.world.worlds import AecWorld, GymnasiumWorld, ParallelWorld, World
from verl.utils.names import did_you_mean


def make_world(env_id: str, api: str, kwargs: Mapping[str, Any]) -> World:
    """Create the environment that `env.params` names.

    Raises:
        AgentSystemError: there is no such environment, it cannot be imported, or it does not accept
            `env.params.kwargs`.
    """
    where = f"env.params.env_id={env_id!r} with env.params.api={api}"
    try:
        if api == "gymnasium":
            return GymnasiumWorld(gymnasium.make(env_id, **{"disable_env_checker": True, **kwargs}))
        make = _entry_point(env_id, where) if ":" in env_id else _registered(env_id, api, where)
        return (AecWorld if api == "aec" else ParallelWorld)(make(**kwargs))
    except ModuleNotFoundError as error:
        raise AgentSystemError(
            f"{where} needs the module {error.name!r}, which is not there; PettingZoo comes with "
            "the extra verl-mas[farama], what some of its games need with its own, such as "
            "pettingzoo[classic]"
        ) from error
    except (gymnasium.error.Error, TypeError, AssertionError) as error:
        hint = "; PettingZoo's games need env.params.api=aec or parallel" if api == "gymnasium" else ""
        raise AgentSystemError(
            f"{where} and env.params.kwargs={kwargs} cannot be made: {error}{hint}"
        ) from error


def _registered(env_id: str, api: str, where: str) -> Callable[..., Any]:
    """Return the factory of an environment that is registered in PettingZoo."""
    import pettingzoo
    from pettingzoo.env_registry.exceptions import FailedToImport, PettingZooRegistryError

    registries = {"aec": pettingzoo.aec_registry, "parallel": pettingzoo.parallel_registry}
    try:
        pettingzoo.spec(api, env_id)
    except PettingZooRegistryError as error:
        other = next((name for name, ids in registries.items() if name != api and env_id in ids), None)
        hint = (
            f"; there is one with env.params.api={other}" if other else did_you_mean(env_id, registries[api])
        )
        raise AgentSystemError(f"{where}: PettingZoo has no such environment{hint}") from error

    def make(**kwargs: Any) -> Any:
        try:
            return pettingzoo.make(api, env_id, **kwargs)
        except FailedToImport as error:
            raise AgentSystemError(f"{where}: {error} ({error.__cause__})") from error

    return make


def _entry_point(env_id: str, where: str) -> Callable[..., Any]:
    """Return the function or class named by `module:name`."""
    module_name, _, name = env_id.partition(":")
    module = importlib.import_module(module_name)
    if not callable(getattr(module, name, None)):
        raise AgentSystemError(f"{where}: the module {module_name} has no {name!r} that makes an environment")
    return getattr(module, name)
