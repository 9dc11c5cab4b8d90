"""Comparison of several runs: keys that differ, and validation tasks that changed sides."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from verl.report.columns import values

# Keys that differ between any two runs and say nothing.
_TRIVIAL = ("trainer.default_local_dir", "trainer.experiment_name")
_ABSENT = "(absent)"
_SIDE = 0.5


def compared(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return `keys` with the values of each run where they differ, `tasks` of the last validation
    that one run solves at least half of the time and another does not, with the numbers of their
    episodes in each run, and `common`, the number of tasks that all runs validated.
    """
    names = sorted({name for run in runs for name in run["config"]} - set(_TRIVIAL))
    keys = [{"key": name, "values": [run["config"].get(name, _ABSENT) for run in runs]} for name in names]
    validations = [_last_validation(run) for run in runs]
    common = set(validations[0]).intersection(*validations[1:])
    return {
        "keys": [key for key in keys if any(value != key["values"][0] for value in key["values"][1:])],
        "tasks": _changed_tasks(validations, common),
        "common": len(common),
    }


def _changed_tasks(
    validations: Sequence[Mapping[str, tuple[float, list[int]]]], common: Iterable[str]
) -> list[dict[str, Any]]:
    tasks = []
    for task in common:
        rates = [validation[task][0] for validation in validations]
        if min(rates) < _SIDE <= max(rates):
            entry = {"task_id": task, "rates": rates, "episodes": [each[task][1] for each in validations]}
            tasks.append((min(rates) - max(rates), task, entry))
    return [entry for *_, entry in sorted(tasks, key=lambda task: task[:2])]


def _last_validation(run: Mapping[str, Any]) -> dict[str, tuple[float, list[int]]]:
    """Return the mean success of each task in the last validation, and its episodes."""
    episodes = run["episodes"]
    names = ("split", "step", "task_id", "success", "failure")
    rows = list(zip(*(values(episodes, name) for name in names), strict=True))
    last = max((step for split, step, *_ in rows if split == "val"), default=None)
    members: dict[str, list[tuple[int, float]]] = {}
    for at, (split, step, task, success, failure) in enumerate(rows):
        if split == "val" and step == last and (success is not None or failure):
            members.setdefault(task, []).append((at, 0.0 if failure else float(success)))
    return {
        task: (sum(value for _, value in rows_of) / len(rows_of), [at for at, _ in rows_of])
        for task, rows_of in members.items()
    }
