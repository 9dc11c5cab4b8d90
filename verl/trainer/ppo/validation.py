"""Validation: every task's episodes are averaged first, then the tasks."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from verl.trainer.ppo.metric_utils import process_validation_metrics
from verl.trainer.ppo.rollout_protocol import CollectResult, Episode
from verl.utils.accuracy import Estimate, estimate_avg, estimate_pass
from verl.utils.console import AccuracyRow

# What the final table shows of a role, by how its name begins.
ROLE_RATES = ("accuracy", "precision", "recall")


@dataclass(frozen=True)
class ValidationResult:
    """`metrics` for the log; `table` maps (team or agent, metric) to what the final before/after table shows."""

    metrics: dict[str, float]
    table: dict[tuple[str, str], Estimate]

    def to_json(self) -> dict[str, Any]:
        """JSON types, for the trainer state of a checkpoint."""
        return {"metrics": self.metrics, "table": [[*key, asdict(value)] for key, value in self.table.items()]}

    @classmethod
    def from_json(cls, state: Mapping[str, Any]) -> ValidationResult:
        """The inverse of `to_json`."""
        return cls(dict(state["metrics"]), {(name, metric): Estimate(**value) for name, metric, value in state["table"]})


def validation_result(results: Sequence[CollectResult], n: int) -> ValidationResult:
    """Metrics of one validation with `n` episodes a task, over the episodes that did not fail.

    Names: `val-core/<data_source>/acc/<statistic>` for success, `val-aux/<data_source>/<score>/<statistic>` for the rest,
    and `val/<metric>` for the pooled numbers of the agents and the environment.
    """
    episodes = [e for r in results for e in r.episodes]
    done = [e for e in episodes if not e.failed]
    metrics: dict[str, float] = {"val/episodes": float(len(episodes)), "val/failed_episodes": float(len(episodes) - len(done))}
    if not done:
        return ValidationResult(metrics, {})
    metrics |= _per_source(done)
    pooled = _pool([r.metrics for r in results], [len(r.episodes) for r in results])
    metrics |= {f"val/{name}": value for name, value in pooled.items()}
    return ValidationResult(metrics, _table(done, n))


def _per_source(episodes: Sequence[Episode]) -> dict[str, float]:
    names = sorted({name for e in episodes for name in e.scores})
    complete = [n for n in names if all(n in e.scores for e in episodes)]
    infos = {n: [float(e.scores[n]) for e in episodes] for n in complete}
    nested = process_validation_metrics([e.data_source for e in episodes], [e.task_id for e in episodes], infos)
    out = {}
    for source, per_name in nested.items():
        for name, statistics in per_name.items():
            prefix = f"val-core/{source}/acc" if name == "success" else f"val-aux/{source}/{name}"
            out |= {f"{prefix}/{statistic}": value for statistic, value in statistics.items()}
    return out


def _pool(metrics: Sequence[Mapping[str, float]], weights: Sequence[int]) -> dict[str, float]:
    """Mean over chunks, weighted by their episodes."""
    sums: dict[str, float] = defaultdict(float)
    totals: dict[str, int] = defaultdict(int)
    for chunk, weight in zip(metrics, weights, strict=True):
        for name, value in chunk.items():
            sums[name] += value * weight
            totals[name] += weight
    return {name: sums[name] / totals[name] for name in sums if totals[name]}


def _table(episodes: Sequence[Episode], n: int) -> dict[tuple[str, str], Estimate]:
    success, task_ids = [float(e.scores["success"]) for e in episodes], [e.task_id for e in episodes]
    rows = {("team", f"accuracy avg@{n}"): estimate_avg(success, task_ids)}
    counts = Counter(task_ids)
    if n > 1:
        whole = [i for i, t in enumerate(task_ids) if counts[t] == n]
        if whole:
            rows[("team", f"accuracy pass@{n}")] = estimate_pass([success[i] >= 1.0 for i in whole], [task_ids[i] for i in whole], n)
    return rows | _role_rates(episodes)


def _role_rates(episodes: Sequence[Episode]) -> dict[tuple[str, str], Estimate]:
    """Rates in 0..1 that the environment reports as `<role>/<name>`, over the tasks of the episodes that have them."""
    names = sorted({n for e in episodes for n in e.scores if "/" in n and n.rsplit("/")[-1].startswith(ROLE_RATES)})
    out = {}
    for name in names:
        values = [(e.scores[name], e.task_id) for e in episodes if name in e.scores]
        role, metric = name.split("/", 1)
        out[role, metric] = estimate_avg([v for v, _ in values], [t for _, t in values])
    return out


def rows_before_after(before: ValidationResult | None, after: ValidationResult | None) -> list[AccuracyRow]:
    """Rows of the final table, the team first, in the order of the newer result."""
    old, new = (before.table if before else {}), (after.table if after else {})
    return [{"name": n, "metric": m, "before": old.get((n, m)), "after": new.get((n, m))} for n, m in dict.fromkeys([*new, *old])]
