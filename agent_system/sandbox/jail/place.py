"""What a job's init has around it: channels to the trainer and the watcher, and how programs are confined and ended."""

from __future__ import annotations

import os
import signal
import struct
from collections.abc import Callable
from typing import Any, NamedTuple

from . import tree

COMMANDS, RESULTS = 0, 1
# To the watcher: number of the run (0: it is over), bytes of memory, bytes of disk, processes (0: nobody needs to look).
WATCH = struct.Struct("!QQQQ")
# From the watcher: number of the run, what it has too much of.
ALARM = struct.Struct("!Qc")
ALARMS = {b"m": "memory", b"d": "disk", b"p": "processes"}


class Place(NamedTuple):
    """What a job needs of its surroundings.

    Attributes:
        watch: descriptor to the watcher.
        alarm: descriptor from the watcher.
        keep: descriptors that programs may inherit.
        clean: empties the writable folder (its size in bytes is given) and returns its path.
        limit: sets what limits of a job its init can live with.
        confine: confines the process of a test; takes the limits and the folder.
        kill_all: kills every process of the job but this one.
        disk_is_bounded: the folder cannot grow beyond its size.
        processes_are_bounded: the kernel counts those of the run and no others.
    """

    watch: int
    alarm: int
    keep: tuple[int, ...]
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
