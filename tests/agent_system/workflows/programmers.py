"""Teams whose Tool writes programs, with replies from scripts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agent_system.rollout import Collector
from agent_system.testing import scripted_team
from verl.trainer.config.reward import RewardConfig
from verl.trainer.config.run import TreeConfig


def programming_team(
    world: str, tokenizer: Any, replies: Mapping[str, Any], k: int = 0, max_steps: int = 1
) -> Collector:
    """Return a team of `world` with `tool=code`; with `k`, every call samples that many replies."""
    settings = {"max_failure_rate": 0.5, "max_steps": max_steps, "reward": RewardConfig(team_scope="call")}
    tree = TreeConfig(k) if k else None
    return scripted_team(world, replies, options={"tool": "code"}, tokenizer=tokenizer, tree=tree, **settings)


def fenced(program: str) -> str:
    """Return a reply that holds a program."""
    return f"Like this:\n```python\n{program}\n```\nDone."
