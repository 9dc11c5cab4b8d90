"""Keys of `algorithm.rollout_correction` that cannot be used, found before anything is loaded."""

from __future__ import annotations

import logging

from verl.trainer.config import RunConfig
from verl.trainer.config_check import ConfigError
from verl.trainer.placement import Placement
from verl.trainer.ppo.core_algos.rollout_correction import IS_LEVELS, Band, parse_bounds, parse_modes

logger = logging.getLogger(__name__)

LOSS_TYPES = ("ppo_clip", "reinforce")


def check_rollout_correction(config: RunConfig, placement: Placement) -> None:
    """Refuse modes and thresholds that mean nothing, and say where no correction helps.

    Raises ConfigError naming the key, its value and what is expected.
    """
    correction = config.algorithm.rollout_correction
    if correction.rollout_is is not None and correction.rollout_is not in IS_LEVELS:
        raise ConfigError(
            f"algorithm.rollout_correction.rollout_is={correction.rollout_is!r}: expected null or one of {', '.join(IS_LEVELS)}"
        )
    if correction.loss_type not in LOSS_TYPES:
        raise ConfigError(f"algorithm.rollout_correction.loss_type={correction.loss_type!r}: expected one of {', '.join(LOSS_TYPES)}")
    if correction.m2po_tau is not None and not correction.m2po_tau > 0:
        raise ConfigError(f"algorithm.rollout_correction.m2po_tau={correction.m2po_tau}: expected null or a positive number such as 0.04")
    try:
        Band.parse(correction.rollout_is_threshold)
        if correction.rollout_rs is not None:
            parse_bounds(parse_modes(correction.rollout_rs), correction.rollout_rs_threshold)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"algorithm.rollout_correction.{error}") from error
    _warn_of_truncation(placement)


def _warn_of_truncation(placement: Placement) -> None:
    """Truncated sampling biases the gradient, and the sampler's log-probs are those before truncation: no ratio shows it."""
    truncated = [a.agent_id for a in placement.agents if a.config.rollout.top_p < 1.0 or a.config.rollout.top_k != -1]
    if truncated:
        logger.warning(
            "actor_rollout_ref.rollout.top_p/top_k truncate the replies of %s: the update takes them for samples of the full distribution, "
            "and no algorithm.rollout_correction sees the difference; use top_p=1.0 and top_k=-1 for an unbiased gradient",
            ", ".join(truncated),
        )
