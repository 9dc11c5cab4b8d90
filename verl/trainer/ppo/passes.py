"""Which passes over its rows a run makes, and how many updates follow."""

from __future__ import annotations

from verl.trainer.config import RunConfig
from verl.trainer.ppo.declared import estimator_needs
from verl.trainer.ppo.per_agent import estimators_in_use
from verl.trainer.untrained import trained_agents


def needs_squares(config: RunConfig) -> bool:
    """An estimator in use has the parameter `sum_pi_squared` without a default."""
    used = estimators_in_use(config.algorithm, trained_agents(config.agent))
    return any(estimator_needs(name, "sum_pi_squared") for name in used)


def needs_old_log_probs(config: RunConfig, on_policy: bool) -> bool:
    """The policies' own log-probs are needed first: for several updates a step, KL in the reward, a correction or an estimator.

    Args:
        config: the run's configuration.
        on_policy: one update a step on fresh samples.
    """
    algorithm = config.algorithm
    correction = algorithm.rollout_correction
    return not correction.bypass_mode and (
        not on_policy or algorithm.use_kl_in_reward or correction.corrects_batch or needs_squares(config)
    )


def scores_policies(config: RunConfig) -> bool:
    """Whether any step of a run makes a pass for the policies' own log-probs."""
    actor = config.actor_rollout_ref.actor
    updates = num_mini_batches(config, actor.ppo_mini_batch_size) * actor.ppo_epochs
    return config.trainer.critic_warmup > 0 or needs_old_log_probs(config, on_policy=updates == 1)


def num_mini_batches(config: RunConfig, tasks: int) -> int:
    """Mini-batches of `tasks` tasks (0: all) that the rows of a step are cut into."""
    return max(config.data.train_batch_size // tasks, 1) if tasks > 0 else 1
