"""The texts of a chunk in fewer bytes, as the file of a report has them; `expand.js` makes of them what
they were.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from verl.report.columns import LENGTH
from verl.report.compact import characters_of, compact_table, short_form


def compact_chunk(chunk: Mapping[str, Any]) -> dict[str, Any]:
    """Return a chunk as tables of its episodes and calls.

    `texts` has the numbers of the strings of each call, those of its prompt, its reply and its anchor: 0
    stands for the one after the largest so far, others are larger by 1. `lines` is the number of lines
    of each prompt, `counts` that of calls of each episode.
    """
    episodes = chunk["episodes"]
    calls = [call for episode in episodes for call in episode["calls"]]
    new = 0
    texts: list[int | None] = []
    for call in calls:
        for text in (*call["prompt"], call["reply"], call.get("anchor")):
            texts.append(None if text is None else 0 if text == new else text + 1)
            new = new if text is None else max(new, text + 1)
    return {
        "strings": chunk["strings"],
        "texts": characters_of(texts),
        "lines": short_form([len(call["prompt"]) for call in calls]),
        "counts": short_form([len(episode["calls"]) for episode in episodes]),
        "calls": _table(calls, ("prompt", "reply", "anchor")),
        "episodes": _table(episodes, ("calls",)),
    }


def _table(objects: list[dict[str, Any]], without: Iterable[str]) -> dict[str, Any]:
    """Return the other values of objects as columns, null where an object has none."""
    names = sorted({name for each in objects for name in each} - set(without))
    columns = {name: [each.get(name) for each in objects] for name in names}
    return {LENGTH: len(objects), **compact_table(columns)}
