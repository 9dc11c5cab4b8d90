"""Traces of the calls of a worker by `torch.profiler`: one file for each recorded step, or run of
steps, and rank.

The controller puts a `Trace` into the batch of a call that is to be recorded; other calls only look
whether there is one.
"""

from __future__ import annotations

import gzip
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from verl.protocol import DataProto

META = "profile"
SUFFIX = ".pt.trace.json.gz"
T = TypeVar("T")


@dataclass(frozen=True)
class Trace:
    """Where the calls of a worker group are recorded.

    Attributes:
        start: path of its files without rank and suffix.
        ranks: those that are recorded; None for all.
        contents: of the configuration (`ProfilerConfig`).
    """

    start: str
    ranks: tuple[int, ...] | None
    contents: tuple[str, ...] = ()

    def covers(self, rank: int) -> bool:
        """Return whether a rank is recorded."""
        return self.ranks is None or rank in self.ranks

    def file(self, rank: int) -> Path:
        """Return the file of a rank, which chrome://tracing, Perfetto and TensorBoard read."""
        return Path(f"{self.start}_rank{rank}{SUFFIX}")


class TraceWriter:
    """Adds the events of every recorded call of this process to the file of its trace; a file of an
    earlier run is replaced.
    """

    def __init__(self) -> None:
        self._begun: set[Path] = set()

    @contextmanager
    def record(self, trace: Trace, rank: int, name: str) -> Iterator[None]:
        """Record what the block does under `name`; nothing is written if it raises."""
        activities = [ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(ProfilerActivity.CUDA)
        recorded = profile(
            activities=activities,
            record_shapes="shapes" in trace.contents,
            profile_memory="memory" in trace.contents,
            with_stack="stack" in trace.contents,
            acc_events=True,
        )
        with recorded, record_function(name):
            yield
        self._add(recorded, trace.file(rank))

    def _add(self, recorded: profile, file: Path) -> None:
        """Append the events of a call; all calls of a process count time from the same origin."""
        with tempfile.TemporaryDirectory() as folder:
            exported = Path(folder) / "call.json"
            recorded.export_chrome_trace(str(exported))
            content: dict[str, Any] = json.loads(exported.read_bytes())
        if file in self._begun:
            with gzip.open(file, "rt", encoding="utf-8") as stored:
                content["traceEvents"] = json.load(stored)["traceEvents"] + content["traceEvents"]
        file.parent.mkdir(parents=True, exist_ok=True)
        unfinished = file.with_name(f".{file.name}")
        with gzip.open(unfinished, "wt", encoding="utf-8", compresslevel=1) as written:
            json.dump(content, written)
        os.replace(unfinished, file)
        self._begun.add(file)


_writer = TraceWriter()


def profiled(method: Callable[[Any, DataProto], T]) -> Callable[[Any, DataProto], T]:
    """Make a worker's method record its calls for which the batch has a `Trace`."""

    @wraps(method)
    def call(self: Any, data: DataProto) -> T:
        trace = data.meta_info.get(META)
        if trace is None or not trace.covers(self.rank):
            return method(self, data)
        with _writer.record(trace, self.rank, method.__name__):
            return method(self, data)

    return call
