"""What `expand.js` does, in Python: tables and texts as the file of a page has them, made what they were."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

from verl.report.columns import values


def integers_of(text: str) -> list[int | None]:
    """Integers of a text with a character each."""
    numbers: list[int | None] = []
    for character in text:
        code = ord(character)
        code -= 0x800 if code >= 0xE000 else 0
        value = code - (code > 92) - 35
        numbers.append(None if value < 0 else -(value + 1) // 2 if value % 2 else value // 2)
    return numbers


def expanded_column(column: Any) -> Any:
    """A column that stands alone."""
    if not isinstance(column, dict):
        return column
    if "ints" in column:
        numbers: list[Any] = integers_of(column["ints"])
        if "set" in column:
            return [column["set"][place] for place in numbers]
        if "sum" in column:
            numbers = list(accumulate(numbers, initial=column.get("from", 0)))[1:]
        per = column.get("per", 1)
        return numbers if per == 1 else [None if number is None else number / per for number in numbers]
    if "fields" in column:
        table = expanded_table(column["fields"])
        none = set(expanded_column(column["none"]))
        length = len(next(iter(table.values()))) + len(none)
        rows = iter(zip(*table.values(), strict=True))
        return [None if at in none else dict(zip(table, next(rows), strict=True)) for at in range(length)]
    return column


def expanded_table(table: dict[str, Any]) -> dict[str, Any]:
    """A table, in which columns may refer to others."""
    table = {name: expanded_column(column) for name, column in table.items()}
    for name, column in table.items():
        if isinstance(column, dict) and "joined" in column:
            parts = zip(*(values(table, part) for part in column["joined"]), strict=True)
            table[name] = [f"{first}{column['by']}{second}" for first, second in parts]
        elif isinstance(column, dict) and "abs" in column:
            table[name] = [abs(value) for value in table[column["abs"]]]
    return {
        name: table[column["same"]] if isinstance(column, dict) and "same" in column else column
        for name, column in table.items()
    }


def expanded_credit(run: dict[str, Any]) -> dict[str, Any]:
    """`credit` of a run by step, which a server sends as it is; log-probs of tokens are left out."""
    if "parts" not in run["credit"]:
        return run["credit"]
    credit = dict(run["credit"]["plain"])
    episodes = [at for at, count in enumerate(values(run["episodes"], "calls")) for _ in range(count)]
    for part in run["credit"]["parts"]:
        table = expanded_table(part["columns"])
        rows = expanded_column(part.get("rows"))
        for name, column in table.items():
            if isinstance(column, dict) and "call" in column:
                table[name] = [values(run["calls"], column["call"])[row] for row in rows]
            elif isinstance(column, dict) and "episode" in column:
                table[name] = [values(run["episodes"], column["episode"])[episodes[row]] for row in rows]
            elif isinstance(column, dict) and "agent" in column:
                agents = values(run["calls"], "agent")
                table[name] = [run["agents"][agents[row]][column["agent"]] for row in rows]
        start = 0
        for step, size in zip(part["steps"], part["sizes"], strict=True):
            credit[step] = {name: column[start : start + size] for name, column in table.items()}
            start += size
    return credit


def expanded_index(index: dict[str, Any]) -> dict[str, Any]:
    """The index of a page."""
    runs = []
    for run in index["runs"]:
        tables = {name: expanded_table(run[name]) for name in ("episodes", "calls", "spans")}
        runs.append(run | tables)
        runs[-1]["credit"] = expanded_credit(runs[-1])
    return index | {"runs": runs}


def expanded_chunk(chunk: dict[str, Any]) -> dict[str, Any]:
    """The texts of a chunk: of each episode its calls with the numbers of their strings."""
    texts: list[int | None] = []
    unseen = 0
    for code in integers_of(chunk["texts"]):
        texts.append(None if code is None else unseen if code == 0 else code - 1)
        unseen = max(unseen, (texts[-1] or 0) + 1) if code is not None else unseen
    numbers = iter(texts)

    calls = iter(_objects(chunk["calls"]))
    lines = iter(expanded_column(chunk["lines"]))
    episodes = []
    for episode, count in zip(_objects(chunk["episodes"]), expanded_column(chunk["counts"]), strict=True):
        members = []
        for call, size in [(next(calls), next(lines)) for _ in range(count)]:
            members.append(call | {"prompt": [next(numbers) for _ in range(size)], "reply": next(numbers)})
            if (anchor := next(numbers)) is not None:
                members[-1]["anchor"] = anchor
        episodes.append(episode | {"calls": members})
    return {"strings": chunk["strings"], "episodes": episodes}


def _objects(table: dict[str, Any]) -> list[dict[str, Any]]:
    columns = expanded_table(table)
    return [
        {
            name: column[row]
            for name, column in columns.items()
            if name != "length" and column[row] is not None
        }
        for row in range(columns["length"])
    ]
