"""What the collector is told about a run."""

from __future__ import annotations

from dataclasses import dataclass, field

from agent_system.errors import AgentSystemError
from agent_system.reward.settings import RewardSettings


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
        env_threads: threads for blocking environments.
        joint_prompt_length: `critic.joint_prompt_length` with `critic.view=joint`; 0 makes no prompts for critics.
    """

    seed: int = 0
    reward: RewardSettings = field(default_factory=RewardSettings)
    max_steps: int = 1
    history_length: int = 4
    max_concurrent_episodes: int = 1024
    max_failure_rate: float = 0.1
    episode_timeout_s: float = 600.0
    call_timeout_s: float = 300.0
    env_threads: int = 16
    joint_prompt_length: int = 0

    def __post_init__(self) -> None:
        if self.max_concurrent_episodes < 1:
            raise AgentSystemError(f"rollout.max_concurrent_episodes must be 1 or more here, found {self.max_concurrent_episodes}")
