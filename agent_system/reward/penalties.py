"""Penalties, as numbers to subtract from a shaped reward. They steer training and are part of no validation score."""

from __future__ import annotations

import numpy as np

from verl.trainer.config.reward import OverlongBufferConfig


def invalid_action(valid: np.ndarray, coefficients: np.ndarray) -> np.ndarray:
    """`coefficient * (1 - valid)`, `[calls]`: what an agent pays for a reply that could not be parsed.

    From the code of GiGPO (arXiv 2505.10978).

    Keys: `actor.use_invalid_action_penalty`, `actor.invalid_action_penalty_coef`; may differ by agent.
    Use when: replies do not keep to the format yet.
    Fails when: it is large beside the reward: saying anything parsable is then worth more than being right.
    """
    return np.where(valid, 0.0, coefficients)


def overlong(lengths: np.ndarray, limits: np.ndarray, buffer: OverlongBufferConfig) -> np.ndarray:
    """`factor * clip((length - (limit - len)) / len, 0, 1)`, `[calls]` (DAPO, arXiv 2503.14476, equation 13 with its sign turned).

    Keys: `reward.overlong_buffer.enable`, `reward.overlong_buffer.len`, `reward.overlong_buffer.penalty_factor`.
    Use when: replies run into the limit, where they earn nothing whatever they had found out.
    Fails when: the limit is short for the task: the penalty then teaches to think less.

    Args:
        lengths: tokens of each reply.
        limits: longest reply of its agent.
        buffer: `len` tokens before the limit (0: a fifth of it) the penalty begins to grow; at the limit it is `penalty_factor`.
    """
    if not buffer.enable:
        return np.zeros(len(lengths))
    width = np.maximum(limits // 5, 1) if buffer.len == 0 else np.full(len(limits), buffer.len)
    return buffer.penalty_factor * np.clip((lengths - (limits - width)) / width, 0.0, 1.0)
