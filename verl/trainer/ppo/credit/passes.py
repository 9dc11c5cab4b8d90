"""Forward passes that a run needs before its updates."""

from __future__ import annotations

from verl.trainer.config import AlgorithmConfig, GatewayConfig, RunConfig
from verl.trainer.plan.run import RunPlan


def needs_old_log_probs(algorithm: AlgorithmConfig, gateway: GatewayConfig, plan: RunPlan) -> bool:
    """Return whether old log-probs of the trainer are needed.

    They are for several updates per step, KL in the reward, a correction, an estimator, and the
    probability that masks cut off.

    Args:
        algorithm: keys under `algorithm`.
        gateway: keys under `gateway`.
        plan: plan of the run.
    """
    masks = gateway.structured == "mask"
    correction = algorithm.rollout_correction
    return not correction.bypass_mode and (
        not plan.on_policy
        or algorithm.use_kl_in_reward
        or correction.corrects_batch
        or masks
        or plan.needs_sum_pi_squared
    )


def computes_old_log_probs(config: RunConfig, plan: RunPlan) -> bool:
    """Return whether any step of a run has a pass for old log-probs, or one after an update
    (`trainer.log_tokens`).
    """
    trainer = config.trainer
    return (
        trainer.critic_warmup > 0
        or trainer.log_tokens > 0
        or needs_old_log_probs(config.algorithm, config.gateway, plan)
    )
