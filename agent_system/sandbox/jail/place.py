"""The context of a job's init: channels to the trainer and the watcher, and functions that confine
and kill programs.
"""

from __future__ import annotations

import os
import signal
import struct
from collections.abc import Callable
from typing import Any, NamedTuple

from . import tree
from .streams import Streams

COMMANDS = 0
RESULTS = 1
# To the watcher: number of the run (0: it is over), limits of memory and disk in bytes, and of
# processes (0: not watched).
WATCH = struct.Struct("!QQQQ")
# From the watcher: number of the run, the limit that it exceeds.
ALARM = struct.Struct("!Qc")
ALARMS = {b"m": "memory", b"d": "disk", b"p": "processes"}


class JobContext(NamedTuple):
    """Channels and functions that a job's init uses.

    Attributes:
        watch: descriptor to the watcher.
        alarm: descriptor from the watcher.
        keep: descriptors that programs may inherit.
        streams: the standard streams of programs.
        clean: empties the writable folder, given its size in bytes, and returns its path.
        limit: sets the limits of a job that its init can live with.
        confine: confines the process of a test, given the limits and the folder.
        kill_all: kills every process of the job but this one.
        disk_is_bounded: the kernel bounds the size of the folder.
        processes_are_bounded: the kernel's process limit counts the processes of the run only.
    """

    watch: int
    alarm: int
    keep: tuple[int, ...]
    streams: Streams
    clean: Callable[[int], str]
    limit: Callable[[dict[str, Any]], None]
    confine: Callable[[dict[str, Any], str], None]
    kill_all: Callable[[], None]
    disk_is_bounded: bool
    processes_are_bounded: bool


def kill_namespace() -> None:
    """Kill every process of this process namespace but the caller."""
    try:
        os.kill(-1, signal.SIGKILL)
    except ProcessLookupError:
        return


def kill_below() -> None:
    """Kill every process below the caller."""
    tree.kill_descendants(os.getpid())
