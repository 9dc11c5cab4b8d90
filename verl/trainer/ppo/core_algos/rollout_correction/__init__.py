"""Correction for a sampler that is not the trainer, or samples that are older than the weights."""

from verl.trainer.ppo.core_algos.rollout_correction.metrics import SamplerGap, sampler_gap
from verl.trainer.ppo.core_algos.rollout_correction.thresholds import LOG_RATIO_BOUND, Band, parse_bounds

__all__ = ["LOG_RATIO_BOUND", "Band", "SamplerGap", "parse_bounds", "sampler_gap"]
