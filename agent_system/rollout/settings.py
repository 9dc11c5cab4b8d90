"""What the collector is told about a run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from agent_system.errors import AgentSystemError
from agent_system.reward.settings import RewardSettings

SELECTIONS = ("greedy", "first", "random", "softmax")


@dataclass(frozen=True)
class TreeSettings:
    """Keys under `rollout.tree`, which `rollout.sampling=tree` reads.

    Attributes:
        k: candidates of a call of an agent that learns, 2 or more.
        select: which candidate is committed: `greedy` (the highest reward, of equal ones the first), `first`, `random` or `softmax`.
        temperature: `softmax`: candidates are drawn with weights `exp(reward / temperature)`.
        epsilon: share of calls in which any candidate is committed, whatever `select` says, so that training also sees the states
            that a policy without a choice among candidates runs into.
        k_per_agent: candidates of the calls of single agents, 1 or more; others that do not learn have 1.
    """

    k: int = 4
    select: str = "greedy"
    temperature: float = 1.0
    epsilon: float = 0.0
    k_per_agent: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.k < 2:
            raise AgentSystemError(f"rollout.tree.k={self.k}: a tree needs 2 candidates or more; use rollout.sampling=parallel for one")
        for agent_id, own in self.k_per_agent.items():
            if own < 1:
                raise AgentSystemError(f"rollout.tree.k_per_agent.{agent_id}={own}: expected 1 candidate or more")
        if self.select not in SELECTIONS:
            raise AgentSystemError(f"rollout.tree.select={self.select!r}: expected one of {', '.join(SELECTIONS)}")
        if not 0 < self.temperature < math.inf:
            raise AgentSystemError(f"rollout.tree.temperature={self.temperature}: expected a finite number above 0")
        if not 0 <= self.epsilon <= 1:
            raise AgentSystemError(f"rollout.tree.epsilon={self.epsilon}: expected a share, 0 to 1")

    def candidates(self, agent_id: str, trained: bool) -> int:
        """Return how many replies a call of an agent samples."""
        return self.k_per_agent.get(agent_id, self.k if trained else 1)


@dataclass(frozen=True)
class CollectorSettings:
    """Limits and weights of collection.

    Attributes:
        seed: `data.seed`.
        reward: the keys under `reward`.
        max_steps: `env.max_steps`, most turns of one episode.
        history_length: `env.history_length`, turns that memory shows.
        max_concurrent_episodes: `rollout.max_concurrent_episodes`, 1 or more.
        max_failure_rate: `rollout.max_failure_rate`.
        episode_timeout_s: `rollout.episode_timeout_s`.
        call_timeout_s: `rollout.call_timeout_s`.
        env_threads: `rollout.env_threads`, most threads for blocking environments, started as calls need them; 1 or more.
        joint_prompt_length: `critic.joint_prompt_length` with `critic.view=joint`; 0 makes no prompts for critics.
        tree: how to sample a tree (`rollout.sampling=tree`); None plays parallel episodes.
    """

    seed: int = 0
    reward: RewardSettings = field(default_factory=RewardSettings)
    max_steps: int = 1
    history_length: int = 4
    max_concurrent_episodes: int = 1024
    max_failure_rate: float = 0.1
    episode_timeout_s: float = 600.0
    call_timeout_s: float = 300.0
    env_threads: int = 1024
    joint_prompt_length: int = 0
    tree: TreeSettings | None = None

    def __post_init__(self) -> None:
        for name in ("max_concurrent_episodes", "env_threads"):
            if getattr(self, name) < 1:
                raise AgentSystemError(f"rollout.{name} must be 1 or more here, found {getattr(self, name)}")
        scope, mode = self.reward.team_scope, self.reward.propagation.mode
        if self.tree is not None and (scope != "call" or mode != "none"):
            raise AgentSystemError(
                f"rollout.sampling=tree pays a candidate what its own action earned, but reward.team_scope={scope} and "
                f"reward.propagation.mode={mode} pay what came later, which one candidate of a call only has led to; "
                "set reward.team_scope=call and reward.propagation.mode=none"
            )
