"""Validation: means over the episodes of each task, then over tasks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from verl.trainer.ppo.collect.protocol import EpisodeBatch, FinishedEpisode
from verl.trainer.ppo.validation_metrics import process_validation_metrics
from verl.utils.accuracy import Estimate, estimate_avg, estimate_pass
from verl.utils.console import AccuracyRow

# Prefixes of the metrics of a role that the final table shows.
ROLE_RATES = ("accuracy", "precision", "recall", "specificity")


@dataclass(frozen=True)
class ValidationResult:
    """`metrics` for the log; `table` maps (team or agent, metric) to an entry of the final
    before/after table.
    """

    metrics: dict[str, float]
    table: dict[tuple[str, str], Estimate]

    def to_json(self) -> dict[str, Any]:
        """Return JSON types, for the trainer state of a checkpoint."""
        return {
            "metrics": self.metrics,
            "table": [[*key, asdict(value)] for key, value in self.table.items()],
        }

    @classmethod
    def from_json(cls, state: Mapping[str, Any]) -> ValidationResult:
        """Return the inverse of `to_json`."""
        return cls(
            dict(state["metrics"]),
            {(name, metric): Estimate(**value) for name, metric, value in state["table"]},
        )


def validation_result(result: EpisodeBatch, n: int) -> ValidationResult:
    """Return the metrics of one validation with `n` episodes per task; a failed episode counts as
    0.

    Names: `val-core/<data_source>/acc/<statistic>` for success,
    `val-aux/<data_source>/<score>/<statistic>` for other scores, and `val/<metric>` for metrics
    of agents and environment.
    """
    episodes = result.episodes
    failed = sum(e.failure is not None for e in episodes)
    metrics: dict[str, float] = {"val/episodes": float(len(episodes)), "val/failed_episodes": float(failed)}
    if failed == len(episodes):
        return ValidationResult(metrics, {})
    metrics |= _per_source(episodes)
    metrics |= {f"val/{name}": value for name, value in result.metrics.items()}
    return ValidationResult(metrics, _table(episodes, n))


def _scores(episode: FinishedEpisode) -> dict[str, float]:
    if episode.failure is not None:
        return {"team_reward": 0.0, "success": 0.0}
    numbers = {
        k: float(v) for k, v in episode.info.items() if isinstance(v, (bool, int, float, np.number, np.bool_))
    }
    return {"team_reward": episode.team_reward} | numbers


def _per_source(episodes: Sequence[FinishedEpisode]) -> dict[str, float]:
    """Return statistics of every score over the episodes that have it."""
    scored = [(e, _scores(e)) for e in episodes]
    out = {}
    for name in sorted({name for e, scores in scored if e.failure is None for name in scores}):
        having = [(e, scores[name]) for e, scores in scored if name in scores]
        values = {name: [value for _, value in having]}
        nested = process_validation_metrics(
            [e.data_source for e, _ in having], [e.task_id for e, _ in having], values
        )
        for source, per_name in nested.items():
            prefix = f"val-core/{source}/acc" if name == "success" else f"val-aux/{source}/{name}"
            out |= {f"{prefix}/{statistic}": value for statistic, value in per_name[name].items()}
    return out


def _table(episodes: Sequence[FinishedEpisode], n: int) -> dict[tuple[str, str], Estimate]:
    has_success = any("success" in e.info for e in episodes if e.failure is None)
    judged = [
        (scores["success"], e.task_id)
        for e in episodes
        for scores in [_scores(e)]
        if has_success and "success" in scores
    ]
    return _accuracy("team", "accuracy", judged, n) | _role_rates(episodes, n)


def _accuracy(
    name: str, metric: str, values: Sequence[tuple[float, str]], n: int
) -> dict[tuple[str, str], Estimate]:
    """Return avg@n of (correctness in 0..1, task), and pass@n over tasks with all n episodes (an
    episode passes with correctness 1).
    """
    rows = {(name, f"{metric} avg@{n}"): _average(values)} if values else {}
    counts = Counter(task_id for _, task_id in values)
    whole = [(value >= 1.0, task_id) for value, task_id in values if counts[task_id] == n]
    if n > 1 and whole:
        rows[name, f"{metric} pass@{n}"] = estimate_pass([v for v, _ in whole], [t for _, t in whole], n)
    return rows


def _role_rates(episodes: Sequence[FinishedEpisode], n: int) -> dict[tuple[str, str], Estimate]:
    """Return the rates `<role>/<name>` in 0..1 that the environment reports, over the episodes that
    have them.

    An accuracy has avg@n and pass@n like the team's; other rates are fractions within an episode
    and have a mean.
    """
    scores = [(_scores(e), e.task_id) for e in episodes]
    names = sorted(
        {name for s, _ in scores for name in s if "/" in name and name.split("/")[1].startswith(ROLE_RATES)}
    )
    rows: dict[tuple[str, str], Estimate] = {}
    for name in names:
        role, metric = name.split("/", 1)
        values = [(s[name], task_id) for s, task_id in scores if name in s]
        rows |= (
            _accuracy(role, metric, values, n)
            if metric.startswith("accuracy")
            else {(role, metric): _average(values)}
        )
    return rows


def _average(values: Sequence[tuple[float, str]]) -> Estimate:
    return estimate_avg([v for v, _ in values], [t for _, t in values])


def rows_before_after(before: ValidationResult | None, after: ValidationResult | None) -> list[AccuracyRow]:
    """Return the rows of the final table, the team first, in the order of the newer result."""
    old = before.table if before else {}
    new = after.table if after else {}
    return [
        {"name": n, "metric": m, "before": old.get((n, m)), "after": new.get((n, m))}
        for n, m in dict.fromkeys([*new, *old])
    ]
