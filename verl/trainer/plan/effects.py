"""Detection of changed keys without an effect: each depends on other keys, and is an error instead
of being ignored.

A key declares the conditions that it depends on (`effect`, see `verl.trainer.config.spec`). A
condition is one of

- `key=value,value`, `key!=value`, `key>number`, or a key alone, which must be set; alternatives are
  separated by ` or `. A label in
  front (`a GPU: trainer.device=auto,cuda`) and a note in parentheses at the end are shown in
  messages only.
- one of `FACTS`, which depend on several keys.

A key is changed if its value is neither the default nor that of the key that it follows. It has an
effect if a key that follows it has one. An estimator or a loss that a plug-in registered may read
any key.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from verl.trainer.config import ActorRolloutRefConfig, RunConfig
from verl.trainer.config.algorithm import READ as ESTIMATED
from verl.trainer.config.critic import CRITIC
from verl.trainer.config.gateway import STRUCTURED
from verl.trainer.config.model import ADAPTER, AGGREGATES, OLD_LOG_PROBS
from verl.trainer.config.model import READ as IN_THE_LOSS
from verl.trainer.config.run import LANES
from verl.trainer.config.spec import IneffectiveKeyError, Key, as_typed, followers, keys
from verl.trainer.plan.placement import AgentPlacement, ApiPlacement
from verl.trainer.plan.registry import ESTIMATORS, POLICY_LOSSES
from verl.trainer.plan.run import RunPlan
from verl.trainer.ppo.credit.passes import computes_old_log_probs
from verl.utils.names import slug, value_at

ACTOR = "actor_rollout_ref.actor."
MODEL = "actor_rollout_ref."
# Key that the comparison of the candidates of a call reads, whatever the estimator is.
COMPARISON = "algorithm.norm_adv_by_std_in_grpo"
# Keys that every estimator with groups reads.
GROUP_KEYS = ("group_by", "group_by_agent_id", "singleton")
# Keys whose conditions are checked for an agent that is not trained: served here, or behind an API.
# Which of its own keys are read at all is in `checks.py`.
CHECKED_OF_SERVED = ("model.", "rollout.")
CHECKED_OF_API = ("rollout.val_kwargs.",)


@dataclass(frozen=True)
class Scope:
    """Input of a condition; for a key of `agent`, `config` holds the values of that agent."""

    config: RunConfig
    plan: RunPlan
    agent: AgentPlacement | ApiPlacement | None = None


def _estimator_reads(key: str, scope: Scope) -> bool:
    """Return whether the estimator of the team, the own estimator of an agent, or the comparison of
    candidates, reads `key`.
    """
    algorithm = scope.config.algorithm
    if key == COMPARISON and scope.plan.committed:
        return True
    used = {
        algorithm.adv_estimator,
        *(
            agent_keys["adv_estimator"]
            for agent_keys in algorithm.per_agent.values()
            if "adv_estimator" in agent_keys
        ),
    }
    algorithm_key = key.removeprefix("algorithm.")
    return any(
        ESTIMATORS.traits(name).grouped
        if algorithm_key in GROUP_KEYS
        else ESTIMATORS.reads(name, algorithm_key)
        for name in used
    )


def _loss_reads(key: str, scope: Scope) -> bool:
    return POLICY_LOSSES.reads(
        scope.config.actor_rollout_ref.actor.policy_loss.loss_mode, key.removeprefix(ACTOR)
    )


def _averages_by_mode(key: str, scope: Scope) -> bool:
    """Return whether the loss or an added term reads `actor.loss_agg_mode`, or the loss always
    aggregates that way.
    """
    actor = scope.config.actor_rollout_ref.actor
    beside = bool(actor.entropy_coeff) or actor.use_kl_loss
    return beside or POLICY_LOSSES.traits(actor.policy_loss.loss_mode).averages in ("", actor.loss_agg_mode)


def _has_lanes(key: str, scope: Scope) -> bool:
    from verl.trainer.ppo.asynchronous.lanes import lanes_of  # of async_training.max_lead alone

    return len(lanes_of(scope.config.algorithm, scope.config.async_training, scope.plan)) > 1


def _adapter_reads(key: str, scope: Scope) -> bool:
    """Return whether an adapter reads `key`: for an agent's own value its own adapter, for a common
    value any.
    """
    has_own_value = scope.agent is not None and key.removeprefix(MODEL) in scope.agent.own_keys
    return any(
        row.adapter is not None for row in scope.plan.agents if not has_own_value or row == scope.agent
    )


FACTS: Mapping[str, Callable[[str, Scope], bool]] = {
    ESTIMATED: _estimator_reads,
    IN_THE_LOSS: _loss_reads,
    AGGREGATES: _averages_by_mode,
    CRITIC: lambda key, scope: scope.plan.needs_critic,
    OLD_LOG_PROBS: lambda key, scope: computes_old_log_probs(scope.config, scope.plan),
    ADAPTER: _adapter_reads,
    LANES: _has_lanes,
    STRUCTURED: lambda key, scope: (
        scope.config.gateway.structured == "free"
        or any(row.config.rollout.structured_outputs for row in scope.plan.agents)
    ),
}


def readers(key: str) -> list[str]:
    """Return the names of the estimators or losses that declare to read a key."""
    if key.startswith(ACTOR):
        return POLICY_LOSSES.readers(key.removeprefix(ACTOR))
    algorithm_key = key.removeprefix("algorithm.")
    return (
        [name for name in ESTIMATORS.names() if ESTIMATORS.traits(name).grouped]
        if algorithm_key in GROUP_KEYS
        else ESTIMATORS.readers(algorithm_key)
    )


def condition_text(condition: str, key: str) -> str:
    """Return a condition of a key as messages and docs/config.md show it."""
    if condition == ESTIMATED:
        return f"algorithm.adv_estimator={' or '.join(readers(key))}"
    if condition == IN_THE_LOSS:
        return f"{ACTOR}policy_loss.loss_mode={' or '.join(readers(key))}"
    return re.sub(r"(?<=\w),(?=\w)", " or ", condition).replace("!=", " other than ")


def holds(condition: str, key: str, scope: Scope) -> bool:
    """Return whether a condition of a key holds."""
    if condition in FACTS:
        return FACTS[condition](key, scope)
    expression = re.sub(r" \(.*\)$", "", condition.rpartition(": ")[2])
    return any(_compare(alternative, scope) for alternative in expression.split(" or "))


def _compare(expression: str, scope: Scope) -> bool:
    key, operator, operand = re.fullmatch(r"([\w.]+)(=|!=|>|$)(.*)", expression).groups()
    value = value_at(scope.config, key)
    if operator == "":
        return bool(value)
    if operator == ">":
        return bool(value > float(operand))
    return (as_typed(value) in operand.split(",")) == (operator == "=")


def check_effect(config: RunConfig, plan: RunPlan) -> None:
    """Check that every changed key has an effect, for the run and for each agent.

    Raises IneffectiveKeyError naming the key, its value and the conditions it needs.
    """
    scope = Scope(config, plan)
    default = RunConfig()
    for key, value, needed in _without_effect(scope, default):
        if not key.startswith(MODEL):
            raise IneffectiveKeyError(f"{key}={value} has no effect; it needs {needed}")
    trained = {name: agent for agent in plan.trained for name in (agent.agent_id, slug(agent.agent_id))}
    for name in config.algorithm.per_agent:
        mine = replace(config, algorithm=trained[name].algorithm)
        for key, value, needed in _without_effect(Scope(mine, plan), config):
            agent_key = key.replace("algorithm.", f"algorithm.per_agent.{name}.", 1)
            raise IneffectiveKeyError(
                f"{agent_key}={value} has no effect; it needs, for this agent, {needed}"
            )
    for agent in plan.everyone:
        mine = replace(config, actor_rollout_ref=agent.config)
        for key, value, needed in _without_effect(
            Scope(mine, plan, agent), replace(config, actor_rollout_ref=ActorRolloutRefConfig())
        ):
            # a critic follows the keys of the run
            if key.startswith(MODEL) and _is_read_of(agent, key.removeprefix(MODEL)):
                raise IneffectiveKeyError(
                    f"{agent.key(key.removeprefix(MODEL))}={value} has no effect for agent "
                    f"'{agent.agent_id}'; it needs {needed}"
                )


def without_effect(config: RunConfig, plan: RunPlan) -> list[str]:
    """Return the changed keys that have no effect, those of the run, and those of a model for which
    they have none for any agent; and keys that follow others, whatever their values are: without
    the keys that they follow, which may be among them, these would be changes.
    """
    run_keys = {name for name in _idle(Scope(config, plan)) if not name.startswith(MODEL)}
    idle = [
        _idle(Scope(replace(config, actor_rollout_ref=agent.config), plan, agent)) for agent in plan.everyone
    ]
    return sorted(run_keys | {name for name in set.intersection(*idle) if name.startswith(MODEL)})


def _idle(scope: Scope) -> set[str]:
    changed = {name for name, _, _ in _without_effect(scope, RunConfig())}
    following = {name for name, key in keys(RunConfig).items() if key.like and unmet(key, scope)}
    return changed | following


def _is_read_of(agent: AgentPlacement | ApiPlacement, key: str) -> bool:
    """Return whether a key is checked for an agent: without training, only keys of serving or of
    API requests are.
    """
    learns = isinstance(agent, AgentPlacement) and not agent.frozen
    checked = CHECKED_OF_SERVED if isinstance(agent, AgentPlacement) else CHECKED_OF_API
    return learns or (key.startswith(checked) and "log_prob_" not in key)


def _without_effect(scope: Scope, default: RunConfig) -> Iterator[tuple[str, Any, str]]:
    """Yield (key, value, unmet condition) of keys that differ from `default`, and from the keys
    that they follow, without an effect.
    """
    for name, key in keys(RunConfig).items():
        value = value_at(scope.config, name) if key.effect else None
        # a configuration made in Python has the defaults where its keys are not set
        unset = [value_at(default, name)] if key.effect else [None]
        if key.like and key.effect:
            unset.append(value_at(scope.config, key.like))
        if value not in unset and not _followed(name, value, scope):
            yield from ((name, "***" if key.secret else value, needed) for needed in unmet(key, scope))


def _followed(name: str, value: Any, scope: Scope) -> bool:
    """Return whether a key that has an effect follows the key `name`."""
    return any(
        value_at(scope.config, other) == value and not unmet(keys(RunConfig)[other], scope)
        for other, leader in followers(RunConfig).items()
        if leader == name
    )


def unmet(key: Key, scope: Scope) -> list[str]:
    """Return the conditions of a key that do not hold, in words."""
    return [
        condition_text(condition, key.name)
        for condition in key.effect
        if not holds(condition, key.name, scope)
    ]
