"""The first process of a job: runs its tests one after the other, each in a process and a folder of its own, and reports.

It is process 1 of the job's process namespace where there is one. It holds what a program must not reach: the channel to the trainer.
Tests come one at a time, so that a program never has a later test in its memory.
"""

from __future__ import annotations

import os
import select
import signal
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NoReturn

from . import frames, program, tree

COMMANDS, RESULTS = 0, 1
JOB_DONE, NO_MORE_JOBS = 0, 3
# To the watcher: number of the test (0: it is over), bytes of memory, bytes of disk (0: nobody needs to look).
WATCH = struct.Struct("!QQQ")
# From the watcher: number of the test, what it has too much of.
ALARM = struct.Struct("!Qc")
ALARMS = {b"m": "memory", b"d": "disk"}
CHUNK = 65536
REAP_EVERY_S = 0.1


@dataclass(frozen=True)
class Place:
    """What a job needs of its surroundings.

    Attributes:
        watch: descriptor to the watcher.
        alarm: descriptor from the watcher.
        keep: descriptors that programs may inherit.
        clean: empties the writable folder (its size in bytes is given) and returns its path.
        confine: confines the process of a test; takes the limits and the folder.
        kill_all: kills every process of the job but this one.
        disk_is_bounded: the folder cannot grow beyond its size.
    """

    watch: int
    alarm: int
    keep: tuple[int, ...]
    clean: Callable[[int], str]
    confine: Callable[[dict[str, Any], str], None]
    kill_all: Callable[[], None]
    disk_is_bounded: bool


@dataclass
class Ending:
    """How the process of a test ended: `stopped` is why it was killed here, `status` what `wait` said, `cpu_s` its CPU time."""

    stopped: str | None = None
    status: int | None = None
    cpu_s: float = 0.0
    output: list[bytearray] = field(default_factory=lambda: [bytearray(), bytearray(), bytearray()])


def serve(place: Place) -> NoReturn:
    """Run one job from the commands and end; with status `NO_MORE_JOBS` when the trainer has closed the channel."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    try:
        job, (source,) = frames.read_frame(COMMANDS)
        text, limits = source.decode("utf-8", "replace"), job["limits"]
        number = 0
        while True:
            test, blobs = frames.read_frame(COMMANDS)
            if test["mode"] == "end":
                os._exit(JOB_DONE)
            number += 1
            _report(_Run(place, text, test, blobs[0], limits, number))
    except (frames.ClosedError, BrokenPipeError):
        place.kill_all()
        os._exit(NO_MORE_JOBS)


def _report(run: _Run) -> None:
    began = time.monotonic()
    ending = run.play()
    seconds = time.monotonic() - began
    out, err, said = (bytes(part) for part in ending.output)
    ready = said.startswith(program.READY)
    header = {"stopped": ending.stopped, "status": ending.status, "seconds": seconds, "cpu_s": ending.cpu_s, "ready": ready}
    frames.write_frame(RESULTS, header, out, err, said[len(program.READY) :] if ready else said)


class _Run:
    """One test."""

    def __init__(self, place: Place, source: str, test: dict[str, Any], stdin: bytes, limits: dict[str, Any], number: int) -> None:
        self.place, self.source, self.test, self.limits, self.number = place, source, test, limits, number
        self.stdin = memoryview(stdin)
        self.most = limits["output_kb"] * 1024
        self.feeding = True
        self.ending = Ending()

    def play(self) -> Ending:
        """Start the program, wait for its end or end it, and leave no process of it."""
        folder = self.place.clean(self.limits["disk_mb"] << 20)
        disk = 0 if self.place.disk_is_bounded else self.limits["disk_mb"] << 20
        os.write(self.place.watch, WATCH.pack(self.number, self.limits["memory_mb"] << 20, disk))
        feed = os.pipe()
        reads = [os.pipe() for _ in range(3)]
        pid = os.fork()
        if pid == 0:
            ends = (feed[0], reads[0][1], reads[1][1], reads[2][1])
            program.start(self.source, self.test, ends, self.place.keep, lambda: self._confine(folder))
        self.deadline = time.monotonic() + self.limits["wall_s"]
        for fd in (feed[0], *(write for _, write in reads)):
            os.close(fd)
        sources = {read: index for index, (read, _) in enumerate(reads)}
        for fd in (feed[1], *sources):
            os.set_blocking(fd, False)
        try:
            self._wait(pid, feed[1], sources)
        finally:
            self._end(pid, sources)
            for fd in (*sources, *([feed[1]] if self.feeding else [])):
                os.close(fd)
            os.write(self.place.watch, WATCH.pack(0, 0, 0))
        return self.ending

    def _confine(self, folder: str) -> None:
        os.chdir(folder)
        self.place.confine(self.limits, folder)

    def _wait(self, pid: int, stdin: int, sources: dict[int, int]) -> None:
        """Move bytes until the process has ended or has had its share."""
        poller = select.poll()
        poller.register(COMMANDS, 0)
        poller.register(self.place.alarm, select.POLLIN)
        over = _exit_descriptor(pid)
        if over is not None:
            poller.register(over, select.POLLIN)
        poller.register(stdin, select.POLLOUT)
        for fd in sources:
            poller.register(fd, select.POLLIN)
        pause = REAP_EVERY_S if over is not None else 0.005
        try:
            while self.ending.status is None and self.ending.stopped is None:
                left = self.deadline - time.monotonic()
                if left <= 0:
                    self.ending.stopped = "timeout"
                    return
                for fd, _ in poller.poll(1000 * min(left, pause)):
                    if fd == COMMANDS:
                        raise frames.ClosedError("the trainer is gone")
                    if fd == self.place.alarm:
                        self._alarm()
                    elif fd == stdin:
                        self._feed(fd, poller)
                    elif fd in sources:
                        self._read(fd, sources[fd], poller)
                self._reap(pid)
        finally:
            if over is not None:
                os.close(over)

    def _alarm(self) -> None:
        number, what = ALARM.unpack(os.read(self.place.alarm, ALARM.size))
        if number == self.number:
            self.ending.stopped = ALARMS[what]

    def _feed(self, fd: int, poller: select.poll) -> None:
        try:
            while self.stdin:
                self.stdin = self.stdin[os.write(fd, self.stdin[:CHUNK]) :]
        except BlockingIOError:
            return
        except BrokenPipeError:
            pass  # the program does not want to read it
        poller.unregister(fd)
        os.close(fd)
        self.feeding = False

    def _read(self, fd: int, index: int, poller: select.poll | None) -> bool:
        """Take what is there; returns whether more may come."""
        kept = self.ending.output[index]
        try:
            chunk = os.read(fd, min(CHUNK, self.most + 1 - len(kept)))
        except BlockingIOError:
            return False
        if not chunk:
            if poller is not None:
                poller.unregister(fd)
            return False
        kept += chunk
        if len(kept) > self.most:
            del kept[self.most :]
            self.ending.stopped = self.ending.stopped or "output"
            return False
        return True

    def _reap(self, main: int) -> None:
        """Collect what has ended, orphans of the program included."""
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            self._ended(pid, status, usage.ru_utime + usage.ru_stime, main)

    def _ended(self, pid: int, status: int, cpu_s: float, main: int) -> None:
        self.ending.cpu_s += cpu_s
        if pid == main:
            self.ending.status = os.waitstatus_to_exitcode(status)

    def _end(self, main: int, sources: dict[int, int]) -> None:
        """Kill what is left, collect it, and read what is still in the pipes."""
        while True:
            self.place.kill_all()
            try:
                pid, status, usage = os.wait4(-1, 0)
            except ChildProcessError:
                break
            self._ended(pid, status, usage.ru_utime + usage.ru_stime, main)
        for fd, index in sources.items():
            while self._read(fd, index, None):
                pass


def _exit_descriptor(pid: int) -> int | None:
    """A descriptor that is readable once the process has ended; None where the system has none (Linux before 5.3)."""
    try:
        return os.pidfd_open(pid)
    except OSError:
        return None


def kill_namespace() -> None:
    """Kill every process of this process namespace but the caller."""
    try:
        os.kill(-1, signal.SIGKILL)
    except ProcessLookupError:
        return


def kill_below() -> None:
    """Kill every process below the caller."""
    tree.kill_descendants(os.getpid())
