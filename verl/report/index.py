"""The index of a report: runs as columns, without the texts of their episodes."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from verl.report.alarms import is_solved, raised_alarms
from verl.report.columns import Columns
from verl.report.compare import compared
from verl.report.episodes import EpisodeIndex
from verl.report.folder import RunFolder
from verl.report.results import accuracy
from verl.utils.names import listed
from verl.utils.plain import clean, number

FORMAT = 1
# More spans are left out, the oldest first.
MOST_SPANS = 100_000
_SPAN_COLUMNS = ("step", "lane", "call", "start", "end")


@dataclass
class Report:
    """Runs and where their texts lie.

    Attributes:
        folders: files of each run.
        episodes: index of each run's episodes.
        runs: each run as the page reads it.
        live: the page is served while the runs may go on.
    """

    folders: list[RunFolder]
    episodes: list[EpisodeIndex]
    runs: list[dict[str, Any]]
    live: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return the index."""
        return {
            "format": FORMAT,
            "built": round(time.time(), 1),
            "live": self.live,
            "runs": self.runs,
            "compare": compared(self.runs) if len(self.runs) > 1 else None,
        }


def read_report(paths: Sequence[Path]) -> Report:
    """Read the folders of runs.

    Raises:
        ReportError: one of them is not the folder of a run.
    """
    folders = [RunFolder(path) for path in paths]
    report = Report(folders, [], [])
    for folder, name in zip(folders, run_names(paths), strict=True):
        folder.read()
        episodes = EpisodeIndex(folder.path)
        for file in folder.episode_files:
            episodes.read(file)
        report.episodes.append(episodes)
        report.runs.append(run_of(folder, episodes, name))
    return report


def run_names(paths: Sequence[Path]) -> list[str]:
    """Return a name for each folder: its own, with those of folders around it or a number where
    several are equal.
    """
    parts = [path.absolute().parts for path in paths]
    names = ["/".join(each[-1:]) or "/" for each in parts]
    for depth in (2, 3):
        names = [
            "/".join(each[-depth:]) if names.count(name) > 1 else name
            for name, each in zip(names, parts, strict=True)
        ]
    return [
        f"{name} ({names[:at].count(name) + 1})" if names.count(name) > 1 else name
        for at, name in enumerate(names)
    ]


def run_of(folder: RunFolder, episodes: EpisodeIndex, name: str) -> dict[str, Any]:
    """Return a run as the page reads it, alarms included."""
    rows = folder.metric_rows
    damaged = [*folder.damaged, *episodes.damaged]
    spans = _spans(folder)
    _mark_left_out(episodes, folder)
    run: dict[str, Any] = {
        "name": name,
        "folder": str(folder.path),
        "state": folder.state,
        "attempt": {"started": folder.started, "from_step": folder.from_step},
        "config": folder.config,
        "agents": _agents(folder, episodes),
        "steps": list(rows),
        "metrics": _metrics(list(rows.values())),
        "accuracy": accuracy(episodes.episodes, folder.trainer_state, rows),
        "episodes": episodes.episodes.to_json(),
        "files": [folder.relative(file.path) for file in episodes.files],
        "calls": episodes.calls.to_json(),
        "credit": {str(step): columns for step, columns in folder.credit.items()},
        "spans": spans.to_json(),
        "audit": [clean(content) for content in folder.audit],
        "damaged": damaged,
        "notes": [*folder.notes, *_note_of(damaged)],
        "left_out_texts": 0,
    }
    read_by_rules = run | {"facts": episodes.facts, "built": time.time()}
    # Seeds are as long as they are random, and are with the texts of a call as well.
    calls = {name: column for name, column in run["calls"].items() if name != "seed"}
    return run | {
        "calls": calls,
        "solved": bool(is_solved(read_by_rules)),
        "alarms": clean(raised_alarms(read_by_rules)),
    }


def _note_of(damaged: Sequence[Mapping[str, Any]]) -> list[str]:
    if not damaged:
        return []
    names = listed([entry["file"] for entry in damaged], 4)
    return [f"{len(damaged)} damaged lines or files are left out: {names}"]


def _mark_left_out(episodes: EpisodeIndex, folder: RunFolder) -> None:
    """Fill in why episodes were not trained."""
    names = ("step", "split", "uid")
    keys = zip(*(episodes.episodes.get(name) for name in names), strict=True)
    causes = [folder.left_out.get((step, uid), "") if split == "train" else "" for step, split, uid in keys]
    episodes.episodes.replace("left_out", causes)


def _agents(folder: RunFolder, episodes: EpisodeIndex) -> list[dict[str, Any]]:
    """Return the agents of the run in the order of their numbers in the calls, then those that were
    not called.
    """
    listed = _placed(folder)
    agents = []
    for agent, policy in episodes.agents:
        place = listed.pop(agent, {})
        trained = place.get("trained")
        agents.append(
            {
                "agent": agent,
                "policy": policy or place.get("policy") or "",
                "group": place.get("group") or "",
                "trained": bool((agent, policy) in episodes.trained if trained is None else trained),
            }
        )
    for agent, place in listed.items():
        agents.append({"agent": agent, "policy": "", "group": "", "trained": False} | place)
    return agents


def _placed(folder: RunFolder) -> dict[str, dict[str, Any]]:
    """Return agent -> policy, worker group and whether it is trained, by run.json or the newest
    checkpoint.
    """
    agents = (folder.state or {}).get("agents")
    rows = agents if isinstance(agents, list) else []
    if not rows:
        placement = folder.trainer_state.get("placement")
        rows = [
            {"agent": row.get("agent_id"), "policy": row.get("policy_id"), "group": row.get("wg_id")}
            for row in (placement if isinstance(placement, list) else [])
            if isinstance(row, Mapping)
        ]
    return {
        str(row["agent"]): {
            name: row[name] for name in ("policy", "group", "trained") if row.get(name) is not None
        }
        for row in rows
        if isinstance(row, Mapping) and row.get("agent")
    }


def _metrics(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[float | int | None]]:
    names = dict.fromkeys(name for row in rows for name in row if name != "step")
    return {name: [number(row.get(name)) for row in rows] for name in names}


def _spans(folder: RunFolder) -> Columns:
    """Return the spans of the worker groups; those that are still open have no end."""
    spans = Columns(_SPAN_COLUMNS)
    rows = folder.span_rows
    if len(rows) > MOST_SPANS:
        folder.notes.append(f"the first {len(rows) - MOST_SPANS} spans of timeline.jsonl are left out")
    for row in rows[-MOST_SPANS:]:
        _add_span(spans, row, row.get("step"), number(row.get("end")))
    state = folder.state or {}
    open_spans = state.get("open_spans")
    for row in open_spans if isinstance(open_spans, list) else ():
        if isinstance(row, Mapping):
            _add_span(spans, row, state.get("step"), None)
    return spans


def _add_span(spans: Columns, row: Mapping[str, Any], step: Any, end: float | int | None) -> None:
    start = row.get("start")
    spans.append(
        {
            "step": number(step),
            "lane": str(row.get("wg_id", "")),
            "call": str(row.get("call", "")),
            "start": round(start, 3)
            if isinstance(start, (int, float)) and number(start) is not None
            else None,
            "end": None if end is None else round(row["end"], 3),
        }
    )
