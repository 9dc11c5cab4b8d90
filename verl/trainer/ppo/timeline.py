"""What each worker group did when, so that one can see what ran at the same time."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True)
class Span:
    """One call to a worker group; `start` and `end` are seconds since the epoch."""

    wg_id: str
    call: str
    start: float
    end: float


class Timeline:
    """Collects spans from several threads."""

    def __init__(self) -> None:
        self._spans: list[Span] = []
        self._lock = threading.Lock()

    @contextmanager
    def span(self, wg_id: str, call: str) -> Iterator[None]:
        """Note how long the body takes, if it raises as well."""
        start = time.time()
        try:
            yield
        finally:
            with self._lock:
                self._spans.append(Span(wg_id, call, start, time.time()))

    def take(self) -> list[Span]:
        """Return what was collected since the last call, by start."""
        with self._lock:
            spans, self._spans = self._spans, []
        return sorted(spans, key=lambda s: (s.start, s.wg_id))


def overlap_seconds(spans: Sequence[Span]) -> float:
    """Seconds in which at least two worker groups were at work."""
    edges = sorted([(s.start, 1, s.wg_id) for s in spans] + [(s.end, -1, s.wg_id) for s in spans])
    open_calls: dict[str, int] = {}
    total, since = 0.0, 0.0
    for at, step, wg_id in edges:
        if len(open_calls) > 1:
            total += at - since
        open_calls[wg_id] = open_calls.get(wg_id, 0) + step
        if not open_calls[wg_id]:
            del open_calls[wg_id]
        since = at
    return total


# A call of a worker group and the phase of the step that it is, where the names differ.
PHASES = {"compute_log_prob": "old_log_prob", "compute_ref_log_prob": "ref", "compute_values": "values"}


def seconds_by_group(spans: Sequence[Span]) -> dict[str, float]:
    """`wg/<id>/timing_s/<phase>`: seconds that each worker group spent in each phase."""
    out: dict[str, float] = {}
    for span in spans:
        name = f"wg/{span.wg_id}/timing_s/{PHASES.get(span.call, span.call)}"
        out[name] = out.get(name, 0.0) + span.end - span.start
    return out


def append_spans(path: Path, step: int, spans: Sequence[Span]) -> None:
    """Append a JSON line a span to `path`, whose folder is made when it is not there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        for span in spans:
            file.write(json.dumps({"step": step, **asdict(span)}) + "\n")
