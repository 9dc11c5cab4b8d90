"""Drawn episodes of a validation as a table for trackers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from verl.trainer.ppo.collect.protocol import FinishedEpisode

COLUMNS = (
    "task_id", "data_source", "episode", "team_reward", "success", "turns", "failure", "first prompt",
    "replies", "answer",
)  # fmt: skip
# Episodes of a table, or some more: groups are whole.
EPISODES = 16
LONGEST_TEXT = 4000


def table_rows(episodes: Sequence[FinishedEpisode]) -> list[list[Any]]:
    """Return a row of `COLUMNS` for each episode: numbers, texts and None. Texts are cut to
    `LONGEST_TEXT` characters; what a model wrote is in them as it is.
    """
    return [_row(episode.to_json()) for episode in episodes]


def _row(entry: dict[str, Any]) -> list[Any]:
    calls = [call for call in entry.get("calls", ()) if call.get("committed", True)]
    replies = "\n\n".join(f"{call['agent_id']}: {call['reply']}" for call in calls)
    success = entry.get("info", {}).get("success")
    return [
        str(entry["task_id"]),
        str(entry["data_source"]),
        int(entry["index"]),
        float(entry["team_reward"]),
        None if success is None else float(success),
        int(entry["turns"]),
        _cut(entry["failure"] or ""),
        _cut(calls[0]["prompt"] if calls else ""),
        _cut(replies),
        _cut(entry["answer"]),
    ]


def _cut(text: str) -> str:
    """Return the beginning of a text, in which lone surrogates, which UTF-8 does not have, are
    escaped.
    """
    whole = text if len(text) <= LONGEST_TEXT else f"{text[:LONGEST_TEXT]} ..."
    return whole.encode("utf-8", "backslashreplace").decode("utf-8")
