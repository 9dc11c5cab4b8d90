"""Teams whose Tool writes programs, with replies from scripts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agent_system.reward import RewardSettings
from agent_system.rollout import AgentBinding, Collector, CollectorSettings, TreeSettings
from agent_system.testing import ScriptedEngine
from verl.protocol.generate import SamplingParams


def programming_team(world: str, tokenizer: Any, replies: Mapping[str, Any], k: int = 0, max_steps: int = 1) -> Collector:
    """Return a team of `world` with `tool=code`; with `k`, every call samples that many replies."""
    sampling = SamplingParams(max_tokens=4000)
    bindings = {
        agent: AgentBinding(agent, "policy", "wg", ScriptedEngine(tokenizer, said), tokenizer, sampling, sampling, 8000)
        for agent, said in replies.items()
    }
    settings = CollectorSettings(
        max_failure_rate=0.5, max_steps=max_steps, reward=RewardSettings(team_scope="call"), tree=TreeSettings(k) if k else None
    )
    return Collector.from_names(
        orchestra_type=world, env_name=world, bindings=bindings, settings=settings, orchestra_options={"tool": "code"}
    )


def fenced(program: str) -> str:
    """Return a reply that holds a program."""
    return f"Like this:\n```python\n{program}\n```\nDone."
