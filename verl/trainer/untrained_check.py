"""What can be wrong with agents that are not trained, found before a model loads."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from verl.trainer.config import ActorRolloutRefConfig, ApiConfig, RunConfig
from verl.trainer.config.spec import describe
from verl.trainer.config_check import ConfigError
from verl.trainer.config_effect import IneffectiveKeyError
from verl.trainer.placement import OF_THE_BASE, Placement, slug
from verl.utils.names import value_at

# What is read of the keys of an agent whose replies train nothing: how it is served, and for one behind an API what goes into a request.
SERVED = ("model.path", "model.tokenizer_path", "model.trust_remote_code", "rollout.")
NOT_SERVED = ("rollout.log_prob_", "rollout.update_bucket_mb", "rollout.weight_transfer", "rollout.free_cache_engine")
# On the base of adapters that learn, it also has what all on the base must agree in.
SERVED_BY_A_BASE = (*SERVED, *OF_THE_BASE)
NOT_SERVED_BY_A_BASE = ("rollout.log_prob_",)
ASKED = ("rollout.temperature", "rollout.top_p", "rollout.response_length", "rollout.stop", "rollout.val_kwargs.")
NOT_ASKED = ("rollout.val_kwargs.top_k",)


def check_untrained(config: RunConfig, placement: Placement) -> None:
    """Look at `agent.frozen`, `agent.api` and what is said of these agents elsewhere.

    Raises:
        ConfigError: a training run in which nobody learns, or a key of a server that is in no environment variable.
        IneffectiveKeyError: a key of its own that nothing reads for an agent that does not learn.
    """
    if not config.trainer.val_only and not placement.trained:
        raise ConfigError(
            f"agent.frozen={list(config.agent.frozen)} and agent.api leave no agent of {list(config.agent.agent_ids)} to train; take one "
            "out, or set trainer.val_only=true to evaluate"
        )
    bases = {spec.wg_id for spec in placement.groups if spec.trained}
    for agent in placement.agents:
        read, but = (SERVED_BY_A_BASE, NOT_SERVED_BY_A_BASE) if agent.wg_id in bases else (SERVED, NOT_SERVED)
        if agent.frozen:
            _check_own_keys(agent.agent_id, "frozen", agent.config, config.actor_rollout_ref, read, but)
    for remote in placement.api:
        _check_own_keys(remote.agent_id, "behind an API", remote.config, config.actor_rollout_ref, ASKED, NOT_ASKED)
        api_key(remote.agent_id, remote.api)
    others = {name: agent.agent_id for agent in placement.everyone for name in (agent.agent_id, slug(agent.agent_id))}
    learning = {row.agent_id for row in placement.trained}
    for name in config.algorithm.per_agent:
        if others.get(name, "") not in {"", *learning}:
            raise IneffectiveKeyError(f"algorithm.per_agent.{name} has no effect: agent '{others[name]}' is not trained; leave it out")


def api_key(agent_id: str, api: ApiConfig, environment: Mapping[str, str] | None = None) -> str | None:
    """The key of an agent's server, from the environment variable that `api_key_env` names; None when it names none.

    Raises ConfigError when the variable is not set.
    """
    if api.api_key_env is None:
        return None
    key = (os.environ if environment is None else environment).get(api.api_key_env, "").strip()
    if not key:
        raise ConfigError(
            f"agent.api.{slug(agent_id)}.api_key_env={api.api_key_env}: this environment variable is not set; export it, or set "
            f"agent.api.{slug(agent_id)}.api_key_env=null for a server without a key"
        )
    return key


def _check_own_keys(
    agent_id: str, what: str, own: ActorRolloutRefConfig, common: ActorRolloutRefConfig, read: Sequence[str], but: Sequence[str]
) -> None:
    for key, *_ in describe(ActorRolloutRefConfig):
        has_effect = key.startswith(tuple(read)) and not key.startswith(tuple(but))
        mine = value_at(own, key)
        if key != "model.path" and not has_effect and mine != value_at(common, key):
            raise IneffectiveKeyError(
                f"agent.agent_specific_parameters.{key} gives agent '{agent_id}' {mine}, which has no effect: it is {what}; give it null"
            )
