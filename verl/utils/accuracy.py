"""Accuracy with confidence intervals over tasks, not rows.

Rows of one task share its difficulty, so they are not independent: values are first reduced within
a task (avg@k, pass@k), then averaged over tasks, and the interval is over tasks as well.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike, NDArray


@dataclass(frozen=True)
class Estimate:
    """A mean over `num_tasks` tasks with its confidence interval; all in [0, 1] for accuracies."""

    value: float
    low: float
    high: float
    num_tasks: int


def group_by_task(values: ArrayLike, task_ids: Sequence[Hashable]) -> dict[Hashable, NDArray[np.float64]]:
    """Return the values of each task, in order of first appearance.

    `values` is [num_rows], `task_ids` has the task of each row. Raises ValueError for different
    lengths, no rows or a non-finite value.
    """
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or len(array) != len(task_ids):
        raise ValueError(
            f"values has shape {array.shape}, task_ids has {len(task_ids)} entries; expected one "
            "value per row"
        )
    if not len(array):
        raise ValueError("no rows to evaluate; expected at least one task")
    if not np.isfinite(array).all():
        row = int(np.flatnonzero(~np.isfinite(array))[0])
        raise ValueError(
            f"the value of row {row} (task {task_ids[row]!r}) is {array[row]}; leave failed "
            "episodes out before evaluating"
        )
    rows: dict[Hashable, list[int]] = {}
    for row, task_id in enumerate(task_ids):
        rows.setdefault(task_id, []).append(row)
    return {task_id: array[members] for task_id, members in rows.items()}


def pass_at_k(num_samples: int, num_correct: int, k: int) -> float:
    """Return the unbiased estimate of the probability that at least one of k samples is correct: 1
    - C(n-c, k) / C(n, k).

    Chen et al. 2021, "Evaluating Large Language Models Trained on Code", eq. 1. Raises ValueError
    unless 0 <= num_correct <= num_samples and 1 <= k <= num_samples.
    """
    if not 0 <= num_correct <= num_samples:
        raise ValueError(f"num_correct={num_correct} is outside 0..num_samples={num_samples}")
    if not 1 <= k <= num_samples:
        raise ValueError(
            f"pass@{k} needs at least {max(k, 1)} samples of a task and k >= 1, found "
            f"{num_samples}; raise env.rollout.val_n"
        )
    if num_samples - num_correct < k:
        return 1.0
    remaining = np.arange(num_samples - num_correct + 1, num_samples + 1)
    return float(1.0 - np.prod(1.0 - k / remaining))


def wilson_interval(mean: float, num_tasks: int, confidence: float = 0.95) -> tuple[float, float]:
    """Return Wilson's score interval (1927) of a proportion `mean` over `num_tasks` tasks.

    Derived for 0/1 outcomes; for task values between 0 and 1 it is conservative, since their
    variance is at most mean * (1 - mean). Unlike the bootstrap's, its width is not 0 when every
    task has the same outcome.
    """
    if not 0.0 <= mean <= 1.0 or num_tasks < 1:
        raise ValueError(
            f"Wilson's interval needs a mean in [0, 1] and at least one task, found mean={mean}, "
            f"num_tasks={num_tasks}"
        )
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    shrink = 1 + z**2 / num_tasks
    center = (mean + z**2 / (2 * num_tasks)) / shrink
    margin = z / shrink * float(np.sqrt(mean * (1 - mean) / num_tasks + z**2 / (4 * num_tasks**2)))
    return max(0.0, min(center - margin, mean)), min(1.0, max(center + margin, mean))


def bootstrap_interval(
    task_values: ArrayLike, confidence: float = 0.95, num_resamples: int = 2000, seed: int = 0
) -> tuple[float, float]:
    """Return the percentile bootstrap interval of the mean of `task_values` [num_tasks]; for values
    outside [0, 1] (rewards).
    """
    array = _per_task(task_values)
    rng = np.random.default_rng(seed)
    means = np.array([array[rng.integers(len(array), size=len(array))].mean() for _ in range(num_resamples)])
    tail = (1 - confidence) / 2
    low, high = np.quantile(means, [tail, 1 - tail])
    return float(low), float(high)


def _per_task(task_values: ArrayLike) -> NDArray[np.float64]:
    array: NDArray[np.float64] = np.asarray(task_values, dtype=np.float64)
    if array.ndim != 1 or not len(array):
        raise ValueError(
            f"task_values has shape {array.shape}; expected one value per task and at least one task"
        )
    return array


def estimate(task_values: ArrayLike, confidence: float = 0.95) -> Estimate:
    """Return the mean of `task_values` [num_tasks] with Wilson's interval if all are in [0, 1],
    else with the bootstrap's.
    """
    array = _per_task(task_values)
    mean = float(array.mean())
    if array.min() >= 0 and array.max() <= 1:
        low, high = wilson_interval(min(mean, 1.0), len(array), confidence)
    else:
        low, high = bootstrap_interval(array, confidence)
    return Estimate(mean, low, high, len(array))


def estimate_avg(values: ArrayLike, task_ids: Sequence[Hashable], confidence: float = 0.95) -> Estimate:
    """Return avg@k: the mean over tasks of each task's mean over its k rows; tasks have equal
    weight.
    """
    return estimate([task.mean() for task in group_by_task(values, task_ids).values()], confidence)


def estimate_pass(
    correct: ArrayLike, task_ids: Sequence[Hashable], k: int, confidence: float = 0.95
) -> Estimate:
    """Return pass@k: the mean over tasks of the unbiased `pass_at_k`.

    `correct` [num_rows] holds 0 and 1 (or booleans). Raises ValueError for other values and for a
    task with fewer than k rows.
    """
    tasks = group_by_task(correct, task_ids)
    chances = []
    for task_id, task in tasks.items():
        if not np.isin(task, (0.0, 1.0)).all():
            raise ValueError(
                f"pass@{k} of task {task_id!r} needs 0/1 outcomes, found {task.tolist()}; apply a "
                "threshold first"
            )
        if len(task) < k:
            raise ValueError(
                f"task {task_id!r} has {len(task)} rows, pass@{k} needs {k}; raise "
                "env.rollout.val_n or ask for a smaller k"
            )
        chances.append(pass_at_k(len(task), int(task.sum()), k))
    return estimate(chances, confidence)
