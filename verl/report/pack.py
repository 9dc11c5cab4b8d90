"""Texts of episodes in chunks of whole groups, in which equal lines are stored once."""

from __future__ import annotations

import base64
import gzip
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from verl.report.texts import MOST_CHARACTERS
from verl.utils.plain import clean, text, to_bytes

# Fields of a call that are copied as they are.
_CALL_VALUES = ("tools", "rounds", "fields", "request", "token_rewards")
_EPISODE_VALUES = ("states", "info", "turn_rewards", "reward_terms", "left_out_causes")


class Chunk:
    """Episodes with one table of strings, of which a prompt is a list of numbers: its lines."""

    def __init__(self) -> None:
        self.episodes: list[dict[str, Any]] = []
        self._strings: dict[str, int] = {}

    def add(self, episode: Mapping[str, Any]) -> None:
        """Add an episode as it is in its file."""
        calls = [*episode["calls"], *(episode.get("unheard") or ())]
        entry: dict[str, Any] = {"calls": [self._call(call) for call in calls]}
        entry |= {name: clean(episode[name]) for name in _EPISODE_VALUES if episode.get(name)}
        for name in ("answer", "failure"):
            if len(value := text(episode.get(name))) > MOST_CHARACTERS:
                entry[name] = value
        self.episodes.append(entry)

    def _call(self, call: Mapping[str, Any]) -> dict[str, Any]:
        entry: dict[str, Any] = {
            # At "\n" alone: other ends of lines are characters of a text.
            "prompt": [self._number(line) for line in _lines(text(call.get("prompt")))],
            "reply": self._number(text(call.get("reply"))),
        }
        if len(action := text(call.get("action"))) > MOST_CHARACTERS:
            entry["action"] = self._number(action)
        if anchor := text(call.get("anchor")):
            entry["anchor"] = self._number(anchor)
        return entry | {name: clean(call[name]) for name in _CALL_VALUES if call.get(name)}

    def _number(self, string: str) -> int:
        at = self._strings.get(string)
        if at is None:
            at = self._strings[string] = len(self._strings)
        return at

    def to_json(self) -> dict[str, Any]:
        """Return the chunk as the page reads it."""
        return {"strings": list(self._strings), "episodes": self.episodes}


def chunk_of(episodes: Iterable[Mapping[str, Any]]) -> Chunk:
    """Return a chunk of episodes as they are in their files."""
    chunk = Chunk()
    for episode in episodes:
        chunk.add(episode)
    return chunk


def _lines(string: str) -> Sequence[str]:
    lines = string.split("\n")
    ended = [f"{line}\n" for line in lines[:-1]]
    return [*ended, lines[-1]] if lines[-1] else ended


def packed(value: Any) -> str:
    """Return JSON as gzip in base64, the same bytes for the same value."""
    return base64.b64encode(gzip.compress(to_bytes(value), 9, mtime=0)).decode("ascii")
