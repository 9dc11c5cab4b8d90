"""Validation metrics per data source and variable, with verl's names: `mean@n`, `best@k`,
`worst@k`, `maj@k`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

N_BOOTSTRAP = 1000

Task = dict[str, list[Any]]


def bootstrap_metric(
    data: Sequence[Any],
    subset_size: int,
    reduce_fns: Sequence[Callable[[Any], float]],
    n_bootstrap: int = N_BOOTSTRAP,
    seed: int = 42,
) -> list[tuple[float, float]]:
    """Return (mean, std) of every reduce function over random subsets with replacement; numpy's
    global random state is not changed.
    """
    items = np.empty(len(data), dtype=object)
    items[:] = list(data)
    results = np.array(
        [[fn(items[draw]) for fn in reduce_fns] for draw in _draws(len(data), subset_size, n_bootstrap, seed)]
    )
    return [(float(m), float(s)) for m, s in zip(results.mean(axis=0), results.std(axis=0), strict=True)]


def _draws(n: int, subset_size: int, n_bootstrap: int, seed: int) -> np.ndarray:
    """Return indices `[n_bootstrap, subset_size]`, from numpy's legacy generator, as in verl."""
    return np.random.RandomState(seed).choice(n, size=(n_bootstrap, subset_size), replace=True)


def calc_maj_val(data: Sequence[Mapping[str, Any]], vote_key: str, val_key: str) -> float:
    """Return the value of the first item with the most frequent vote."""
    winner = Counter(item[vote_key] for item in data).most_common(1)[0][0]
    return next(item[val_key] for item in data if item[vote_key] == winner)


def process_validation_metrics(
    data_sources: Sequence[str],
    sample_uids: Sequence[str],
    infos_dict: Mapping[str, Sequence[Any]],
    seed: int = 42,
    expected_acc_counts: Mapping[tuple[str, str], int] | None = None,
) -> dict[str, dict[str, dict[str, float]]]:
    """Return metrics per data source and variable: `mean@n`, `std@n`, `best@k/*`, `worst@k/*` (and
    `maj@k/*` if there is a `pred`).

    Rows are averaged per task first, then over tasks, so that every task has the same weight.

    Args:
        data_sources: data source of each row.
        sample_uids: task of each row.
        infos_dict: values of each row by variable; None is a missing value, string variables are
            ignored.
        seed: seed of the random subsets.
        expected_acc_counts: expected number of rows of each (data source, task): missing rows count
            as `acc` 0, and `acc_success_only` is the mean without them. For data sources that
            report `acc`.
    """
    sources = _by_task(data_sources, sample_uids, infos_dict)
    for (source, uid), expected in (expected_acc_counts or {}).items():
        tasks = sources.get(source, {})
        if any(value is not None for task in tasks.values() for value in task.get("acc", ())):
            task = tasks.setdefault(uid, {})
            task["acc_success_only"] = [value for value in task.get("acc", ()) if value is not None]
            task["acc"] = task["acc_success_only"] + [0.0] * (expected - len(task["acc_success_only"]))
    return {source: _source_metrics(list(tasks.values()), seed) for source, tasks in sources.items()}


def _by_task(
    sources: Sequence[str], uids: Sequence[str], infos: Mapping[str, Sequence[Any]]
) -> dict[str, dict[str, Task]]:
    grouped: dict[str, dict[str, Task]] = defaultdict(
        lambda: defaultdict(lambda: {name: [] for name in infos if len(infos[name])})
    )
    for row, (source, uid) in enumerate(zip(sources, uids, strict=True)):
        for name, column in grouped[source][uid].items():
            column.append(infos[name][row])
    return grouped


def _source_metrics(tasks: Sequence[Task], seed: int) -> dict[str, dict[str, float]]:
    out: dict[str, dict[str, float]] = {}
    for name in dict.fromkeys(name for task in tasks for name in task):
        columns = [([v for v in task.get(name, ()) if v is not None], task.get("pred")) for task in tasks]
        columns = [(values, votes) for values, votes in columns if values and not isinstance(values[0], str)]
        if not columns:
            continue
        most = max(len(values) for values, _ in columns)
        per_task = [_task_metrics(values, votes, seed, most) for values, votes in columns]
        keys = sorted({k for m in per_task for k in m})
        out[name] = {k: float(np.mean([m[k] for m in per_task if k in m])) for k in keys}
    return out


def _task_metrics(
    values: Sequence[float], votes: Sequence[Any] | None, seed: int, most: int
) -> dict[str, float]:
    """Return statistics of one task; `most`, the number of rows of a complete task, is the n of
    `mean@n`.
    """
    n = len(values)
    out = {f"mean@{most}": float(np.mean(values))}
    if n == 1:
        return out
    out[f"std@{most}"] = float(np.std(values))
    has_votes = votes is not None and len(votes) == n and all(vote is not None for vote in votes)
    for k in [2**i for i in range(1, n.bit_length()) if 2**i < n] + [n]:
        draws = np.asarray(values, dtype=float)[_draws(n, k, N_BOOTSTRAP, seed)]
        for name, extremes in (("best", draws.max(axis=1)), ("worst", draws.min(axis=1))):
            out |= {f"{name}@{k}/mean": float(extremes.mean()), f"{name}@{k}/std": float(extremes.std())}
        if has_votes:
            pairs = [{"val": v, "pred": p} for v, p in zip(values, votes or (), strict=True)]
            [(maj, maj_std)] = bootstrap_metric(
                pairs, k, [lambda d: calc_maj_val(d, "pred", "val")], seed=seed
            )
            out |= {f"maj@{k}/mean": maj, f"maj@{k}/std": maj_std}
    return out
