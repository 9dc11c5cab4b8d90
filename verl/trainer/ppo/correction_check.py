"""Keys of `algorithm.rollout_correction` and of the policy losses that cannot be used, found before anything is loaded."""

from __future__ import annotations

import logging
import math
from operator import attrgetter

from verl.trainer.config import RunConfig
from verl.trainer.config.names import IS_LEVELS
from verl.trainer.config_check import ConfigError
from verl.trainer.placement import Placement
from verl.trainer.ppo.correction_bounds import Band, parse_bounds, parse_modes
from verl.trainer.ppo.per_agent import agent_config
from verl.trainer.ppo.registry import POLICY_LOSSES, estimator_needs
from verl.trainer.untrained import trained_agents

logger = logging.getLogger(__name__)

LOSS_TYPES = ("ppo_clip", "reinforce")


def check_rollout_correction(config: RunConfig, placement: Placement) -> None:
    """Refuse modes, thresholds and weights of losses that mean nothing, and say where no correction helps.

    Raises ConfigError naming the key, its value and what is expected.
    """
    correction = config.algorithm.rollout_correction
    if correction.rollout_is is not None and correction.rollout_is not in IS_LEVELS:
        raise ConfigError(
            f"algorithm.rollout_correction.rollout_is={correction.rollout_is!r}: expected null or one of {', '.join(IS_LEVELS)}"
        )
    if correction.loss_type not in LOSS_TYPES:
        raise ConfigError(f"algorithm.rollout_correction.loss_type={correction.loss_type!r}: expected one of {', '.join(LOSS_TYPES)}")
    if correction.m2po_tau is not None and not 0 < correction.m2po_tau < math.inf:
        raise ConfigError(f"algorithm.rollout_correction.m2po_tau={correction.m2po_tau}: expected null or a positive number such as 0.04")
    try:
        bands = {"rollout_is_threshold": Band.parse(correction.rollout_is_threshold)}
        if correction.rollout_rs is not None:
            bounds = parse_bounds(parse_modes(correction.rollout_rs), correction.rollout_rs_threshold)
            bands |= {f"rollout_rs_threshold ({mode})": band for mode, band in bounds.items()}
    except (TypeError, ValueError) as error:
        raise ConfigError(f"algorithm.rollout_correction.{error}") from error
    for name, band in bands.items():
        if band.lower is not None and not band.lower <= 1 <= band.upper:
            raise ConfigError(
                f"algorithm.rollout_correction.{name}={band.lower:g}_{band.upper:g} excludes 1, the ratio of a token of which sampler and "
                "trainer agree: nothing would be left to learn from; choose a lower bound of at most 1 and an upper one of at least 1"
            )
    _check_bypass(config)
    _check_losses(config, placement)
    _warn_of_truncation(placement)


def _check_bypass(config: RunConfig) -> None:
    """Refuse estimators that read what the pass for old log-probs computes beside them, where there is no such pass."""
    for agent_id in trained_agents(config.agent) if config.algorithm.rollout_correction.bypass_mode else ():
        name = agent_config(config.algorithm, agent_id).adv_estimator
        if estimator_needs(name, "sum_pi_squared"):
            raise ConfigError(
                f"algorithm.adv_estimator={name} (agent '{agent_id}') needs sum_pi_squared, which the pass for old log-probs computes and "
                "algorithm.rollout_correction.bypass_mode=true leaves out; set bypass_mode=false, or choose another estimator"
            )


def _check_losses(config: RunConfig, placement: Placement) -> None:
    for agent in placement.trained:
        actor = agent.config.actor
        loss = actor.policy_loss.loss_mode
        if loss == "bypass_mode" and not config.algorithm.rollout_correction.bypass_mode:
            raise ConfigError(
                f"actor_rollout_ref.actor.policy_loss.loss_mode=bypass_mode (agent '{agent.agent_id}') needs "
                "algorithm.rollout_correction.bypass_mode=true"
            )
        for key in POLICY_LOSSES.traits(loss).positive:
            value = attrgetter(key)(actor)
            if value is None or not 0 < value < math.inf:
                raise ConfigError(
                    f"actor_rollout_ref.actor.{key}={value} (agent '{agent.agent_id}'): the loss {loss} needs a positive number"
                )


def _warn_of_truncation(placement: Placement) -> None:
    """Truncated sampling biases the gradient, and the sampler's log-probs are those before truncation: no ratio shows it."""
    truncated = [a.agent_id for a in placement.trained if a.config.rollout.top_p < 1.0 or a.config.rollout.top_k != -1]
    if truncated:
        logger.warning(
            "actor_rollout_ref.rollout.top_p/top_k truncate the replies of %s: the update takes them for samples of the full distribution, "
            "and no algorithm.rollout_correction sees the difference; use top_p=1.0 and top_k=-1 for an unbiased gradient",
            ", ".join(truncated),
        )
