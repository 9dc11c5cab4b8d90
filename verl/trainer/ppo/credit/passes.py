"""Forward passes that a run needs before its updates."""

from __future__ import annotations

from verl.trainer.config import RunConfig
from verl.trainer.placement.learners import is_on_policy, policy_learners
from verl.trainer.placement.table import Placement
from verl.trainer.placement.untrained import trained_agents
from verl.trainer.ppo.per_agent import estimators_in_use
from verl.trainer.ppo.registry import estimator_needs


def needs_sum_pi_squared(config: RunConfig) -> bool:
    """Return whether an estimator in use has the parameter `sum_pi_squared` without a default."""
    used = estimators_in_use(config.algorithm, trained_agents(config.agent))
    return any(estimator_needs(name, "sum_pi_squared") for name in used)


def needs_old_log_probs(config: RunConfig, on_policy: bool) -> bool:
    """Return whether old log-probs of the trainer are needed.

    They are for several updates per step, KL in the reward, a correction, an estimator, and the probability
    that masks cut off.

    Args:
        config: configuration of the run.
        on_policy: see `is_on_policy`.
    """
    algorithm = config.algorithm
    masks = config.gateway.structured == "mask"
    correction = algorithm.rollout_correction
    return not correction.bypass_mode and (
        not on_policy
        or algorithm.use_kl_in_reward
        or correction.corrects_batch
        or masks
        or needs_sum_pi_squared(config)
    )


def computes_old_log_probs(config: RunConfig, placement: Placement) -> bool:
    """Return whether any step of a run has a pass for old log-probs."""
    return config.trainer.critic_warmup > 0 or needs_old_log_probs(
        config, is_on_policy(config, policy_learners(config, placement))
    )
