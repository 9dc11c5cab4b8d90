"""Accuracy of a run before and after, and of each validation, with intervals over tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from verl.report.columns import Columns
from verl.utils.accuracy import estimate_avg
from verl.utils.plain import number


def accuracy(
    episodes: Columns, trainer_state: Mapping[str, Any], metrics: Mapping[int, Mapping[str, Any]]
) -> dict[str, Any]:
    """Return accuracy `before` and `after` training, at each validation (`points`) and by data
    source (`files`), each with `step`, `n` (tasks), `rate`, `low` and `high`.

    Args:
        episodes: all episodes.
        trainer_state: of the newest checkpoint, with the validations before and after.
        metrics: step -> its metrics, for runs without trajectories: their points have no interval.
    """
    rows = _validation_rows(episodes)
    measure = "success" if not rows or any(row[4] is not None for row in rows) else "team_reward"
    points = _points(rows, measure) or _points_of_metrics(metrics)
    sources = {source for _, _, source, *_ in rows}
    files = {
        source: _before_after(_points([row for row in rows if row[2] == source], measure), {})
        for source in sorted(sources)
    }
    return {"measure": measure, **_before_after(points, trainer_state), "points": points, "files": files}


def _validation_rows(episodes: Columns) -> list[tuple[Any, ...]]:
    """Return (step, task, data source, failure, success, team reward) of validation episodes."""
    names = ("split", "step", "task_id", "data_source", "failure", "success", "team_reward")
    rows = zip(*(episodes.get(name) for name in names), strict=True)
    return [row[1:] for row in rows if row[0] == "val"]


def _points(rows: Sequence[Sequence[Any]], measure: str) -> list[dict[str, Any]]:
    """Return the accuracy at each step; a failed episode counts as 0."""
    by_step: dict[int, tuple[list[float], list[str]]] = {}
    for step, task, _, failure, success, reward in rows:
        value = success if measure == "success" else reward
        if failure:
            value = 0.0
        if value is not None:
            of_step = by_step.setdefault(step, ([], []))
            of_step[0].append(float(value))
            of_step[1].append(task)
    return [_point(step, *of_step) for step, of_step in sorted(by_step.items())]


def _point(step: int, values: Sequence[float], tasks: Sequence[str]) -> dict[str, Any]:
    mean = estimate_avg(values, tasks)
    return {
        "step": step,
        "n": mean.num_tasks,
        "rate": number(mean.value),
        "low": number(mean.low),
        "high": number(mean.high),
    }


def _points_of_metrics(metrics: Mapping[int, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the accuracy of validations that only metrics.jsonl has: the mean over its data
    sources.
    """
    points = []
    for step, row in metrics.items():
        rates = [
            float(value)
            for name, value in row.items()
            if name.startswith("val-core/") and "/acc/mean@" in name and number(value) is not None
        ]
        if rates:
            rate = number(sum(rates) / len(rates))
            points.append({"step": step, "n": None, "rate": rate, "low": None, "high": None})
    return points


def _before_after(
    points: Sequence[dict[str, Any]], trainer_state: Mapping[str, Any]
) -> dict[str, dict[str, Any] | None]:
    first = points[0] if points else None
    last = points[-1] if len(points) > 1 else None
    # A single validation of a trained team is the one after training.
    if last is None and first is not None and first["step"] > 0:
        last = first
        first = None
    step = trainer_state.get("global_step")
    before = _of_table(trainer_state.get("before"), first["step"] if first else 0)
    after = _of_table(trainer_state.get("after"), step if isinstance(step, int) else None)
    # A run that has gone on since its last checkpoint has newer validations.
    if after and last and isinstance(step, int) and last["step"] > step:
        after = None
    return {"before": before or first, "after": after or last}


def _of_table(result: Any, step: int | None) -> dict[str, Any] | None:
    """Return the team's accuracy in a validation of a trainer state; None if it has none."""
    table = result.get("table") if isinstance(result, Mapping) else None
    for entry in table if isinstance(table, list) else ():
        if not isinstance(entry, list) or len(entry) != 3 or not isinstance(entry[2], Mapping):
            continue
        name, metric, value = entry
        if name == "team" and str(metric).startswith("accuracy avg@"):
            return {
                "step": step,
                "n": number(value.get("num_tasks")),
                "rate": number(value.get("value")),
                "low": number(value.get("low")),
                "high": number(value.get("high")),
            }
    return None
