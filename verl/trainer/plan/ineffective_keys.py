"""Keys without an effect: which they are, and what messages and docs/config.md say of their conditions."""

from __future__ import annotations

import re

from verl.trainer.config import RunConfig
from verl.trainer.config.algorithm import READ as ESTIMATED
from verl.trainer.config.model import READ as IN_THE_LOSS
from verl.trainer.config.spec import IneffectiveKeyError, Key, keys
from verl.trainer.plan.effects import (
    ACTOR,
    ALGORITHM,
    GROUP_KEYS,
    MODEL,
    NO_OWN_VALUE,
    Scope,
    changed,
    first_without_effect,
    scopes_of,
    unmet_by_all,
)
from verl.trainer.plan.registry import ESTIMATORS, POLICY_LOSSES
from verl.trainer.plan.run import RunPlan
from verl.utils.names import slug, value_at


def refusal(config: RunConfig, key: Key, scope: Scope, condition: str) -> IneffectiveKeyError:
    """Return the error for a value without effect.

    Args:
        config: values of the run.
        key: the key.
        scope: that of the agent, or of the run.
        condition: a condition of the key that does not hold there.
    """
    name = key.name
    agent = scope.agent
    needed = condition_text(condition, name)
    value = "***" if key.secret else value_at(scope.config, name)
    if agent is None:
        return IneffectiveKeyError(f"{name}={value} has no effect; it needs {needed}")
    has_own_value = name in scope.own_keys
    if name.startswith(MODEL):
        shown_name = agent.key(name.removeprefix(MODEL)) if has_own_value else name
        return IneffectiveKeyError(
            f"{shown_name}={value} has no effect for agent '{agent.agent_id}'; it needs {needed}"
        )
    per_agent = config.algorithm.per_agent
    if has_own_value:
        section = next(n for n in per_agent if n in (agent.agent_id, slug(agent.agent_id)))
        agent_key = name.replace(ALGORITHM, f"{ALGORITHM}per_agent.{section}.", 1)
        return IneffectiveKeyError(f"{agent_key}={value} has no effect; it needs, for this agent, {needed}")
    whose = f", for {NO_OWN_VALUE}," if per_agent else ""
    return IneffectiveKeyError(f"{name}={value} has no effect; it needs{whose} {needed}")


def check_effect(config: RunConfig, plan: RunPlan) -> None:
    """Check that every changed key has an effect, for the run and for each agent.

    Raises IneffectiveKeyError naming the key, its value and the conditions it needs.
    """
    if (ineffective := first_without_effect(config, plan)) is not None:
        raise refusal(config, *ineffective)


def without_effect(config: RunConfig, plan: RunPlan) -> list[str]:
    """Return the changed common keys that have no effect; and keys that follow others, whatever
    their values are: without the keys that they follow, which may be among them, these would be
    changes.
    """
    scopes = scopes_of(config, plan)
    names = {key.name for key in changed(config)}
    return sorted(
        name
        for name, key in keys(RunConfig).items()
        if (name in names or key.like) and any(unmet_by_all(key, config, plan, scopes))
    )


def readers(key: str) -> list[str]:
    """Return the names of the estimators or losses that declare to read a key."""
    if key.startswith(ACTOR):
        return POLICY_LOSSES.readers(key.removeprefix(ACTOR))
    algorithm_key = key.removeprefix(ALGORITHM)
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
