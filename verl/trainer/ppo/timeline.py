"""Timeline: start and end of every call to a worker group, which shows what ran concurrently."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

# `Span.call` of a time in which an engine had requests, beside the calls to the worker group.
GENERATION = "generate"


@dataclass(frozen=True)
class Span:
    """One call to a worker group, or a time in which its engine had requests; `start` and `end` are
    seconds since the epoch.
    """

    wg_id: str
    call: str
    start: float
    end: float


class OpenSpan(NamedTuple):
    """A call in progress; `start` is in seconds since the epoch."""

    wg_id: str
    call: str
    start: float


class Timeline:
    """Collects spans from several threads."""

    def __init__(self) -> None:
        self._spans: list[Span] = []
        # Of each body that runs: what it is, and when its part that `take` has not returned began.
        self._open: dict[object, tuple[OpenSpan, float]] = {}
        self._lock = threading.Lock()

    @contextmanager
    def span(self, wg_id: str, call: str) -> Iterator[None]:
        """Record the duration of the body, also if it raises."""
        key = object()
        with self._lock:
            now = time.time()
            self._open[key] = OpenSpan(wg_id, call, now), now
        try:
            yield
        finally:
            with self._lock:
                span, since = self._open.pop(key)
                self._spans.append(Span(span.wg_id, span.call, since, time.time()))

    def open(self) -> list[OpenSpan]:
        """Return the bodies that run, each from when it began."""
        with self._lock:
            return [span for span, _ in self._open.values()]

    def add(self, wg_id: str, call: str, start: float, end: float) -> None:
        """Record a span; times are seconds since the epoch."""
        with self._lock:
            self._spans.append(Span(wg_id, call, start, end))

    def take(self) -> list[Span]:
        """Return the spans since the last call, sorted by start; a body that still runs has a span
        until now, and another one from now.
        """
        with self._lock:
            now = time.time()
            spans = self._spans
            self._spans = []
            for key, (span, since) in self._open.items():
                spans.append(Span(span.wg_id, span.call, since, now))
                self._open[key] = span, now
        return sorted(spans, key=lambda s: (s.start, s.wg_id))


def overlap_seconds(spans: Sequence[Span]) -> float:
    """Return the seconds in which at least two worker groups were busy."""
    edges = sorted([(s.start, 1, s.wg_id) for s in spans] + [(s.end, -1, s.wg_id) for s in spans])
    open_calls: dict[str, int] = {}
    total = 0.0
    since = 0.0
    for at, step, wg_id in edges:
        if len(open_calls) > 1:
            total += at - since
        open_calls[wg_id] = open_calls.get(wg_id, 0) + step
        if not open_calls[wg_id]:
            del open_calls[wg_id]
        since = at
    return total


# Calls of a worker group whose phase of the step has another name.
PHASES = {"compute_log_prob": "old_log_prob", "compute_ref_log_prob": "ref", "compute_values": "values"}


def seconds_by_group(spans: Sequence[Span]) -> dict[str, float]:
    """Return `wg/<id>/timing_s/<phase>`: seconds that each worker group spent in each phase."""
    out: dict[str, float] = {}
    for span in spans:
        name = f"wg/{span.wg_id}/timing_s/{PHASES.get(span.call, span.call)}"
        out[name] = out.get(name, 0.0) + span.end - span.start
    return out


def idle_by_group(spans: Sequence[Span], wg_ids: Collection[str], seconds: float) -> dict[str, float]:
    """Return `wg/<id>/idle`: share of `seconds` in which no call to a worker group was in progress;
    calls may overlap.
    """
    busy = dict.fromkeys(wg_ids, 0.0)
    until = dict.fromkeys(wg_ids, 0.0)
    for span in sorted((span for span in spans if span.wg_id in busy), key=lambda span: span.start):
        busy[span.wg_id] += max(span.end - max(span.start, until[span.wg_id]), 0.0)
        until[span.wg_id] = max(until[span.wg_id], span.end)
    return {f"wg/{wg_id}/idle": max(1 - busy_seconds / seconds, 0.0) for wg_id, busy_seconds in busy.items()}


def append_spans(path: Path, step: int, spans: Sequence[Span]) -> None:
    """Append one JSON line per span to `path`; its folder is created if necessary."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        for span in spans:
            file.write(json.dumps({"step": step, **asdict(span)}) + "\n")
