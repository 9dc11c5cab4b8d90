"""Trajectory files: one JSON line an episode, every call with its prompt, reply, reward terms and parsed fields."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from agent_system.rollout.record import EpisodeRecord


def write_trajectories(path: str | Path, episodes: Sequence[EpisodeRecord], *, limit: int = -1) -> int:
    """Write up to `limit` episodes (-1: all), failed ones included; return how many. The file appears whole or not at all."""
    chosen = episodes if limit < 0 else episodes[:limit]
    if not chosen:
        return 0
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(path.name + ".tmp")
    with aside.open("w", encoding="utf-8") as out:
        for episode in chosen:
            out.write(json.dumps(episode.to_json(), ensure_ascii=False) + "\n")
    aside.replace(path)
    return len(chosen)
