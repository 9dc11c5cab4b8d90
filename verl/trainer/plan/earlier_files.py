"""Keys of configuration files that earlier versions wrote beside checkpoints, as keys of this one."""

from __future__ import annotations

from copy import deepcopy
from typing import Any


def with_present_keys(saved: dict[Any, Any]) -> dict[Any, Any]:
    """Return the tree of a file with each switch that became a value of another key as that value.

    A switch that was off had left the number beside it without effect, so the number goes as well.
    Sections that are no sections stay, for the check of types.
    """
    saved = deepcopy(saved)
    agent = _section(saved, "agent")
    shared = agent.pop("model_sharing", None)
    if shared is not None and agent.get("specialization") is None:
        agent["specialization"] = "prompt" if shared else "full"
    actor = _section(_section(saved, "actor_rollout_ref"), "actor")
    if actor.pop("use_invalid_action_penalty", True) is False:
        actor["invalid_action_penalty_coef"] = 0.0
    for updates in (actor, _section(saved, "critic")):
        if updates.pop("use_adaptive_ppo_mini_batch_size", True) is False:
            updates["ppo_mini_update_num"] = None
    return saved


def _section(tree: dict[Any, Any], name: str) -> dict[Any, Any]:
    section = tree.get(name)
    return section if isinstance(section, dict) else {}
