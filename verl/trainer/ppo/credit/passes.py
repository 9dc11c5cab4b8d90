"""Which passes over its rows a run makes."""

from __future__ import annotations

from verl.trainer.config import RunConfig
from verl.trainer.placement.learners import is_on_policy, policy_learners
from verl.trainer.placement.table import Placement
from verl.trainer.placement.untrained import trained_agents
from verl.trainer.ppo.per_agent import estimators_in_use
from verl.trainer.ppo.registry import estimator_needs


def needs_squares(config: RunConfig) -> bool:
    """An estimator in use has the parameter `sum_pi_squared` without a default."""
    used = estimators_in_use(config.algorithm, trained_agents(config.agent))
    return any(estimator_needs(name, "sum_pi_squared") for name in used)


def needs_old_log_probs(config: RunConfig, on_policy: bool) -> bool:
    """The policies' own log-probs are needed first: for several updates a step, KL in the reward, a correction or an estimator.

    Args:
        config: the run's configuration.
        on_policy: see `is_on_policy`.
    """
    algorithm = config.algorithm
    correction = algorithm.rollout_correction
    return not correction.bypass_mode and (
        not on_policy or algorithm.use_kl_in_reward or correction.corrects_batch or needs_squares(config)
    )


def scores_policies(config: RunConfig, placement: Placement) -> bool:
    """Whether any step of a run makes a pass for the policies' own log-probs."""
    return config.trainer.critic_warmup > 0 or needs_old_log_probs(config, is_on_policy(policy_learners(config, placement)))
