"""What messages and docs/config.md say of the conditions of keys."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from verl.trainer.config.algorithm import READ as ESTIMATED
from verl.trainer.config.model import READ as IN_THE_LOSS
from verl.trainer.config.names import ACTOR, ALGORITHM, GROUP_KEYS, MODEL, NO_OWN_VALUE
from verl.trainer.config.spec import IneffectiveKeyError, Key
from verl.trainer.plan.placement import AgentPlacement, ApiPlacement
from verl.trainer.plan.registry import ESTIMATORS, POLICY_LOSSES
from verl.utils.names import slug


def refusal(
    key: Key,
    value: Any,
    agent: AgentPlacement | ApiPlacement | None,
    is_own: bool,
    per_agent: Mapping[str, Any],
    condition: str,
) -> IneffectiveKeyError:
    """Return the error for a value without effect.

    Args:
        key: the key.
        value: its value for the agent, or the run.
        agent: the agent; None: the run.
        is_own: the value is the own one of the agent.
        per_agent: `algorithm.per_agent` of the run.
        condition: a condition of the key that does not hold there.
    """
    name = key.name
    needed = condition_text(condition, name)
    value = "***" if key.secret else value
    if agent is None:
        return IneffectiveKeyError(f"{name}={value} has no effect; it needs {needed}")
    if name.startswith(MODEL):
        shown_name = agent.key(name.removeprefix(MODEL)) if is_own else name
        return IneffectiveKeyError(
            f"{shown_name}={value} has no effect for agent '{agent.agent_id}'; it needs {needed}"
        )
    if is_own:
        section = next(n for n in per_agent if n in (agent.agent_id, slug(agent.agent_id)))
        agent_key = name.replace(ALGORITHM, f"{ALGORITHM}per_agent.{section}.", 1)
        return IneffectiveKeyError(f"{agent_key}={value} has no effect; it needs, for this agent, {needed}")
    whose = f", for {NO_OWN_VALUE}," if per_agent else ""
    return IneffectiveKeyError(f"{name}={value} has no effect; it needs{whose} {needed}")


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
