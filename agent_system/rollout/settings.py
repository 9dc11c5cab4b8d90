"""Settings of the collector."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from agent_system.errors import AgentSystemError
from verl.trainer.config.reward import OverlongBufferConfig, RewardConfig, check_tree_rewards
from verl.trainer.config.run import TreeConfig
from verl.trainer.config.spec import check_values
from verl.utils.names import draw_place

# More than most steps have episodes, so that a blocking method seldom waits for a thread; a bound,
# because each thread has a stack.
ENV_THREADS = 1024


@dataclass(frozen=True)
class CollectorSettings:
    """Limits and weights of collection.

    Attributes:
        seed: `data.seed`.
        experiment_name: `trainer.experiment_name`, which verl's reward functions may read.
        reward: the keys under `reward`.
        invalid_action_penalty: agent -> penalty of a reply that cannot be parsed
            (`actor.invalid_action_penalty_coef`); 0 for others.
        max_steps: `env.max_steps`, maximum number of turns of one episode.
        history_length: `env.history_length`, number of turns that memory shows.
        max_concurrent_episodes: `rollout.max_concurrent_episodes`, 1 or more.
        max_failure_rate: `rollout.max_failure_rate`.
        episode_timeout_s: `rollout.episode_timeout_s`.
        call_timeout_s: `rollout.call_timeout_s`.
        env_threads: maximum number of threads for blocking environments, started on demand; 1 or
            more.
        joint_prompt_length: `critic.joint_prompt_length`; 0 builds no
            prompts for critics.
        tree: settings of tree sampling (`rollout.sampling=tree`); None plays parallel episodes.
        reward_terms: agent -> named terms of rewards from which it learns
            (`algorithm.gdpo_reward_keys`); columns of the batch.
        greedy_baselines: agents whose calls in a tree get a greedy reply too, whose reward is the
            baseline of the candidates.
        tool_sequences: agents whose generations with tools between them are one sample
            (`tool_samples=sequence`).
        repeat_calls: agent -> number of training episodes that share its replies
            (`rollout.repeat_calls`); 1 for others.
        recorded: share of the groups, drawn by their ids, of whose episodes times and states are
            recorded for readers; of validations all, if it is above 0.
    """

    seed: int = 0
    experiment_name: str = ""
    reward: RewardConfig = field(default_factory=RewardConfig)
    invalid_action_penalty: Mapping[str, float] = field(default_factory=dict)
    max_steps: int = 1
    history_length: int = 4
    max_concurrent_episodes: int = 1024
    max_failure_rate: float = 0.1
    episode_timeout_s: float = 600.0
    call_timeout_s: float = 300.0
    env_threads: int = ENV_THREADS
    joint_prompt_length: int = 0
    tree: TreeConfig | None = None
    reward_terms: Mapping[str, Collection[str]] = field(default_factory=dict)
    greedy_baselines: Collection[str] = ()
    tool_sequences: Collection[str] = ()
    repeat_calls: Mapping[str, int] = field(default_factory=dict)
    recorded: float = 0.0

    def __post_init__(self) -> None:
        for name in ("max_concurrent_episodes", "env_threads"):
            if getattr(self, name) < 1:
                raise AgentSystemError(f"rollout.{name} must be 1 or more here, found {getattr(self, name)}")
        if self.tree is not None:
            check_values(self.tree, "rollout.tree")
            check_tree_rewards(self.reward, self.tree.returns)

    def records(self, uid: str, validate: bool) -> bool:
        """Return whether times and states of a group's episodes are recorded."""
        return self.recorded > 0 and (validate or draw_place(uid) < self.recorded)

    @property
    def tree_returns(self) -> str:
        """`rollout.tree.returns`; `step` without a tree, whose episodes have the same rewards with
        either.
        """
        return self.tree.returns if self.tree is not None else "step"

    def candidates(self, agent_id: str, trained: bool) -> int:
        """Return the number of candidates per call of an agent in a tree: `k_per_agent`, else `k`
        if it is trained and 1 if not.
        """
        return 1 if self.tree is None else self.tree.k_per_agent.get(agent_id, self.tree.k if trained else 1)

    def for_validation(self) -> CollectorSettings:
        """Return the settings without penalties and critics' prompts: penalties apply in training
        only, not in scores.
        """
        reward = replace(self.reward, overlong_buffer=OverlongBufferConfig())
        return replace(self, reward=reward, invalid_action_penalty={}, joint_prompt_length=0, reward_terms={})
