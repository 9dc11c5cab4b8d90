"""Penalties that are subtracted from a shaped reward. They apply in training only, not in
validation scores.
"""

from __future__ import annotations

import numpy as np

from verl.trainer.config.reward import OverlongBufferConfig


def invalid_action(valid: np.ndarray, coefficients: np.ndarray) -> np.ndarray:
    """Return `coefficient * (1 - valid)`, `[calls]`: the penalty of a reply that could not be parsed.

    From the code of GiGPO (arXiv 2505.10978).

    Keys: `actor.invalid_action_penalty_coef`; may differ by agent.
    Use when: replies do not follow the required format yet.
    Fails when: it is large relative to the reward: any parsable reply is then worth more than a correct one.
    """
    return np.where(valid, 0.0, coefficients)


def overlong(lengths: np.ndarray, limits: np.ndarray, buffer: OverlongBufferConfig) -> np.ndarray:
    """Return `factor * clip((length - (limit - len)) / len, 0, 1)`, `[calls]` (DAPO, arXiv 2503.14476,
    equation 13 negated).

    Keys: `reward.overlong_buffer.len`, `reward.overlong_buffer.penalty_factor`.
    Use when: replies reach the length limit and are cut before their answer, so that they earn nothing.
    Fails when: the limit is short for the task: the penalty then discourages reasoning that the task needs.

    Args:
        lengths: tokens of each reply.
        limits: longest reply of its agent, in tokens.
        buffer: the penalty grows from 0, `len` tokens before the limit (0: a fifth of the limit), to
            `penalty_factor` at the limit; None: none.
    """
    if buffer.len is None:
        return np.zeros(len(lengths))
    width = np.maximum(limits // 5, 1) if buffer.len == 0 else np.full(len(limits), buffer.len)
    return buffer.penalty_factor * np.clip((lengths - (limits - width)) / width, 0.0, 1.0)
