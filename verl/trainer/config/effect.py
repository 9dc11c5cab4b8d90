"""Keys that were changed and would do nothing: each needs another key, and an error is better than a run that ignores it.

A key declares the conditions that it depends on (`effect`, see `verl.trainer.config.spec`). A condition is one of

- `key=value,value`, `key!=value`, `key>number`, or a key alone, which must be set; several with ` or ` between them. A label in front
  (`a GPU: trainer.device=auto,cuda`) and a note in brackets behind are for the reader of the message.
- one of `FACTS`: what follows from several keys.

A key counts as changed when its value is not the default. An estimator or a loss that a plug-in registered may read any key.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from verl.trainer.config import ActorRolloutRefConfig, RunConfig
from verl.trainer.config.algorithm import READ as ESTIMATED
from verl.trainer.config.critic import CRITIC
from verl.trainer.config.model import ADAPTER, AVERAGES, SCORED
from verl.trainer.config.model import READ as IN_THE_LOSS
from verl.trainer.config.spec import IneffectiveKeyError, Key, keys
from verl.trainer.placement.table import AgentPlacement, ApiPlacement, Placement
from verl.trainer.ppo.credit.passes import scores_policies
from verl.trainer.ppo.critic import need_critic
from verl.trainer.ppo.per_agent import agent_config
from verl.trainer.ppo.registry import ESTIMATORS, POLICY_LOSSES
from verl.utils.names import value_at

ACTOR, MODEL = "actor_rollout_ref.actor.", "actor_rollout_ref."
# Keys that every estimator reads which compares rows with their group.
OF_GROUPS = ("group_by", "group_by_agent_id", "singleton")
# What is read of the keys of an agent that does not learn, and what not.
SERVED = ("model.", "rollout.")
ASKED = ("rollout.val_kwargs.",)


@dataclass(frozen=True)
class Scope:
    """What a condition is evaluated on; where a key of `agent` is judged, `config` holds that agent's own values."""

    config: RunConfig
    placement: Placement
    agent: AgentPlacement | ApiPlacement | None = None


def _estimator_reads(key: str, scope: Scope) -> bool:
    """The estimator of the team does, or one that a single agent has for itself."""
    algorithm = scope.config.algorithm
    used = {algorithm.adv_estimator, *(own["adv_estimator"] for own in algorithm.per_agent.values() if "adv_estimator" in own)}
    own = key.removeprefix("algorithm.")
    return any(ESTIMATORS.traits(name).grouped if own in OF_GROUPS else ESTIMATORS.reads(name, own) for name in used)


def _loss_reads(key: str, scope: Scope) -> bool:
    return POLICY_LOSSES.reads(scope.config.actor_rollout_ref.actor.policy_loss.loss_mode, key.removeprefix(ACTOR))


def _averages_by_mode(key: str, scope: Scope) -> bool:
    """`actor.loss_agg_mode` is read, by the loss or by a term beside it, or says what happens anyway."""
    actor = scope.config.actor_rollout_ref.actor
    beside = bool(actor.entropy_coeff) or actor.use_kl_loss
    return beside or POLICY_LOSSES.traits(actor.policy_loss.loss_mode).averages in ("", actor.loss_agg_mode)


def _adapter_reads(key: str, scope: Scope) -> bool:
    """A value of its own needs an adapter of its own; a common one any."""
    own = scope.agent is not None and key.removeprefix(MODEL) in scope.agent.own_keys
    return any(row.adapter is not None for row in scope.placement.agents if not own or row == scope.agent)


FACTS: Mapping[str, Callable[[str, Scope], bool]] = {
    ESTIMATED: _estimator_reads,
    IN_THE_LOSS: _loss_reads,
    AVERAGES: _averages_by_mode,
    CRITIC: lambda key, scope: need_critic(scope.config),
    SCORED: lambda key, scope: scores_policies(scope.config, scope.placement),
    ADAPTER: _adapter_reads,
}


def readers(key: str) -> list[str]:
    """Return the names of the estimators or losses that say that they read a key."""
    if key.startswith(ACTOR):
        return POLICY_LOSSES.readers(key.removeprefix(ACTOR))
    own = key.removeprefix("algorithm.")
    return [name for name in ESTIMATORS.names() if ESTIMATORS.traits(name).grouped] if own in OF_GROUPS else ESTIMATORS.readers(own)


def condition_text(condition: str, key: str) -> str:
    """A condition of a key as messages and docs/config.md have it."""
    if condition == ESTIMATED:
        return f"algorithm.adv_estimator={' or '.join(readers(key))}"
    if condition == IN_THE_LOSS:
        return f"{ACTOR}policy_loss.loss_mode={' or '.join(readers(key))}"
    return re.sub(r"(?<=\w),(?=\w)", " or ", condition).replace("!=", " other than ")


def holds(condition: str, key: str, scope: Scope) -> bool:
    """Whether a condition of a key holds."""
    if condition in FACTS:
        return FACTS[condition](key, scope)
    expression = re.sub(r" \(.*\)$", "", condition.rpartition(": ")[2])
    return any(_compare(alternative, scope.config) for alternative in expression.split(" or "))


def _compare(expression: str, config: RunConfig) -> bool:
    key, operator, wanted = re.fullmatch(r"([\w.]+)(=|!=|>|$)(.*)", expression).groups()
    found = value_at(config, key)
    if operator == "":
        return bool(found)
    if operator == ">":
        return bool(found > float(wanted))
    shown = "null" if found is None else str(found).lower() if isinstance(found, bool) else str(found)
    return (shown in wanted.split(",")) == (operator == "=")


def check_effect(config: RunConfig, placement: Placement) -> None:
    """Find changed keys without an effect, for the run and for each agent.

    Raises IneffectiveKeyError naming the key, its value and what it needs.
    """
    scope, default = Scope(config, placement), RunConfig()
    for key, value, needed in _without_effect(scope, default):
        if not key.startswith(MODEL):
            raise IneffectiveKeyError(f"{key}={value} has no effect; it needs {needed}")
    for name in config.algorithm.per_agent:
        mine = replace(config, algorithm=agent_config(config.algorithm, name))
        for key, value, needed in _without_effect(Scope(mine, placement), config):
            own = key.replace("algorithm.", f"algorithm.per_agent.{name}.", 1)
            raise IneffectiveKeyError(f"{own}={value} has no effect; it needs, for this agent, {needed}")
    for agent in placement.everyone:
        mine = replace(config, actor_rollout_ref=agent.config)
        for key, value, needed in _without_effect(
            Scope(mine, placement, agent), replace(config, actor_rollout_ref=ActorRolloutRefConfig())
        ):
            if _is_read_of(agent, key.removeprefix(MODEL)):
                raise IneffectiveKeyError(
                    f"{agent.key(key.removeprefix(MODEL))}={value} has no effect for agent '{agent.agent_id}'; it needs {needed}"
                )


def _is_read_of(agent: AgentPlacement | ApiPlacement, key: str) -> bool:
    """Whether a key is judged for an agent: of one that does not learn, only how it is served or asked is read."""
    learns = isinstance(agent, AgentPlacement) and not agent.frozen
    return learns or (key.startswith(SERVED if isinstance(agent, AgentPlacement) else ASKED) and "log_prob_" not in key)


def _without_effect(scope: Scope, default: RunConfig) -> Iterator[tuple[str, Any, str]]:
    """(key, value, what it needs) of every key that differs from `default` in vain."""
    for name, key in keys(RunConfig).items():
        value = value_at(scope.config, name) if key.effect else None
        if key.effect and value != value_at(default, name):
            yield from ((name, "***" if key.secret else value, needed) for needed in unmet(key, scope))


def unmet(key: Key, scope: Scope) -> list[str]:
    """The conditions of a key that do not hold, in words."""
    return [condition_text(condition, key.name) for condition in key.effect if not holds(condition, key.name, scope)]
