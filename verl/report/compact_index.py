"""The index of a report in fewer bytes, as its file has it; `expand.js` makes of it what it was. Only
log-probs of single tokens lose digits, and columns that no page reads are left out (`UNREAD`).

A column of `credit/` may have the form `{"call": name}`, `{"episode": name}` or `{"agent": name}`: what the
index has of the call of each row.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

from verl.report.columns import values
from verl.report.compact import characters_of, compact_table, short_form

# Columns that alarms and the choice of texts read, or nobody.
UNREAD = {
    "episodes": ("task_text", "started"),
    "calls": ("reply", "reply_chars", "prior_replies"),
    "credit": ("logp", "old_logp", "entropy", "token_advantages", "token_values"),
}
# Columns of `credit/` -> where the index has the same of a row's call.
_REPEATED = {
    "traj_uid": ("episode", "traj_uid"),
    "turn": ("call", "turn"),
    "call": ("call", "call"),
    "candidate": ("call", "candidate"),
    "tokens": ("call", "response_tokens"),
    "agent_id": ("agent", "agent"),
    "policy_id": ("agent", "policy"),
}
_BEFORE = "log_prob_before"
_AFTER = "log_prob_after"
# Digits of the largest log-prob of a reply.
_DIGITS = 3
_MOST_DECIMALS = 15


def compact_index(index: Mapping[str, Any]) -> dict[str, Any]:
    """Return an index whose tables and `credit` are in shorter forms."""
    return {**index, "runs": [_compact_run(run) for run in index["runs"]]}


def _compact_run(run: Mapping[str, Any]) -> dict[str, Any]:
    tables = {
        name: compact_table({key: run[name][key] for key in run[name] if key not in UNREAD.get(name, ())})
        for name in ("episodes", "calls", "spans")
    }
    return {**run, **tables, "credit": _compact_credit(run)}


def _compact_credit(run: Mapping[str, Any]) -> dict[str, Any]:
    """Return `credit` as tables of the steps that have the same columns; `plain` has steps whose
    columns are of different lengths.
    """
    rows_of = _rows_of_calls(run)
    plain: dict[str, Any] = {}
    parts: dict[tuple[str, ...], list[tuple[str, dict[str, list[Any]]]]] = {}
    for step, columns in run["credit"].items():
        columns = {name: column for name, column in columns.items() if name not in UNREAD["credit"]}
        if len({len(column) for column in columns.values()}) > 1:
            plain[step] = columns
        else:
            parts.setdefault(tuple(columns), []).append((step, columns))
    tables = []
    for names, steps in parts.items():
        table = {name: [value for _, columns in steps for value in columns[name]] for name in names}
        sizes = [len(next(iter(columns.values()), [])) for _, columns in steps]
        entry: dict[str, Any] = {"steps": [step for step, _ in steps], "sizes": sizes}
        tables.append(entry | _credit_table(run, table, rows_of))
    return {"plain": plain, "parts": tables}


def _rows_of_calls(run: Mapping[str, Any]) -> dict[tuple[Any, ...], int]:
    """Return (traj_uid, turn, call, candidate) -> row in the calls, of replies that were heard."""
    episodes = run["episodes"]
    calls = run["calls"]
    parts = [values(calls, name) for name in ("turn", "call", "candidate", "unheard")]
    rows: dict[tuple[Any, ...], int] = {}
    columns = [values(episodes, name) for name in ("traj_uid", "split", "first_call", "calls")]
    for traj_uid, split, first, count in zip(*columns, strict=True):
        if split == "train":
            for row in range(first, first + count):
                turn, call, candidate, unheard = (part[row] for part in parts)
                if not unheard:
                    rows[traj_uid, turn, call, candidate] = row
    return rows


def _credit_table(
    run: Mapping[str, Any], table: dict[str, list[Any]], rows_of: Mapping[tuple[Any, ...], int]
) -> dict[str, Any]:
    """Return the columns of `credit/`, what the index has of the calls being named only."""
    keys = [table.get(name) for name in ("traj_uid", "turn", "call", "candidate")]
    rows: list[int] = []
    if all(key is not None for key in keys):
        # -1: a call that is not there
        names = zip(*keys, strict=True)  # type: ignore[arg-type]
        rows = [rows_of.get(tuple(map(_hashable, name)), -1) for name in names]
    tokens = _token_table(table)
    rest = {name: column for name, column in table.items() if not tokens or name not in (_BEFORE, _AFTER)}
    # such as of calls that trainer.log_trajectories leaves out
    if not rows or -1 in rows:
        return {"columns": compact_table(rest), "tokens": tokens}
    episode_of = list(
        chain.from_iterable([at] * count for at, count in enumerate(values(run["episodes"], "calls")))
    )
    agent_of = values(run["calls"], "agent")
    references: dict[str, Any] = {}
    for name, (kind, source) in _REPEATED.items():
        if name not in rest:
            continue
        if kind == "call":
            column = values(run["calls"], source)
            of_calls = [column[row] for row in rows]
        elif kind == "episode":
            column = values(run["episodes"], source)
            of_calls = [column[episode_of[row]] for row in rows]
        else:
            of_calls = [run["agents"][agent_of[row]][source] for row in rows]
        if of_calls == rest[name]:
            references[name] = {kind: source}
    others = {name: column for name, column in rest.items() if name not in references}
    return {"columns": references | compact_table(others), "rows": short_form(rows), "tokens": tokens}


def _token_table(table: Mapping[str, list[Any]]) -> dict[str, Any] | None:
    """Return the log-probs of single tokens, of the rows that have them; None where the table has
    none.
    """
    before = table.get(_BEFORE)
    after = table.get(_AFTER)
    if before is None or after is None:
        return None
    rows = [at for at, pair in enumerate(zip(before, after, strict=True)) if pair != (None, None)]
    if not all(_are_tokens(before[at], after[at]) for at in rows):
        return None
    changes = [
        [None if b is None else a - b for b, a in zip(before[at], after[at], strict=True)] for at in rows
    ]
    return {
        "rows": short_form(rows),
        "sizes": short_form([len(change) for change in changes]),
        "before": _rounded_rows([before[at] for at in rows]),
        "change": _rounded_rows(changes),
    }


def _are_tokens(before: Any, after: Any) -> bool:
    """Return whether both are numbers of the same tokens, null where these are masked."""
    if not isinstance(before, list) or not isinstance(after, list) or len(before) != len(after):
        return False
    return all(
        b is a is None or (type(b) in (int, float) and type(a) in (int, float))
        for b, a in zip(before, after, strict=True)
    )


def _rounded_rows(rows: Sequence[Sequence[float | None]]) -> dict[str, Any]:
    """Return numbers with the decimals that give the largest of a row three digits; their sum is the
    rounded sum.
    """
    decimals = []
    whole: list[int | None] = []
    for row in rows:
        largest = max((abs(value) for value in row if value), default=1.0)
        decimals.append(min(_DIGITS - 1 - math.floor(math.log10(largest)), _MOST_DECIMALS))
        scale = 10.0 ** decimals[-1]
        exact = 0.0
        total = 0
        for value in row:
            if value is None:
                whole.append(None)
                continue
            exact += value
            whole.append(round(exact * scale) - total)
            total += whole[-1]  # type: ignore[operator]
    return {"ints": characters_of(whole), "decimals": short_form(decimals)}


def _hashable(value: Any) -> Any:
    return value if isinstance(value, (str, int, float)) or value is None else str(value)
