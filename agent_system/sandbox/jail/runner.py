"""Runs the tests of a job: starts each program, moves its bytes, ends it, collects all of its processes, reports.

Everything that this process touches is copied once more for every program that it forks: it does little, with few modules.
"""

from __future__ import annotations

import os
import select
import struct
import time
from typing import Any

from . import frames, kernel, program
from .place import ALARM, ALARMS, COMMANDS, RESULTS, WATCH, Place

# To the trainer, before what the program wrote: place in `STOPPED`, exit status, seconds on the clock, seconds of CPU.
REPORT = struct.Struct("!bidd")
STOPPED = (None, "timeout", "output", "memory", "disk", "processes")
CHUNK = 65536
LOOK_EVERY_S = 0.05
WITHOUT_DESCRIPTOR_S = 0.005


class Runner:
    """Runs the tests of one job.

    Attributes:
        number: of the run, never the same again in this worker: an alarm that comes late must not end another run.
        stopped: why the test was ended here; None while it runs and when it ended by itself.
        status: how its process ended, negative for a signal; None while it runs.
        cpu_s: CPU time of its processes that have ended.
        compiled: the program as the first test compiled it, which is only ever loaded by processes of the program; empty before.
    """

    def __init__(self, place: Place, source: str, limits: dict[str, Any]) -> None:
        self.place, self.source, self.limits = place, source, limits
        self.compiled = b""
        self.most = limits["output_kb"] * 1024
        self.number = 0
        self.poller = select.poll()
        self.poller.register(COMMANDS, 0)
        self.poller.register(place.alarm, select.POLLIN)

    def run(self, test: dict[str, Any], stdin: bytes) -> None:
        """Start the program, wait for its end or end it, leave no process of it, report."""
        began = time.monotonic()
        self.number = time.monotonic_ns()
        self.stopped: str | None = None
        self.status: int | None = None
        self.cpu_s, self.watched = 0.0, False
        folder = self.place.clean(self.limits["disk_mb"] << 20)
        (stdin_end, feed), (out, out_end), (err, err_end), (said, said_end) = [os.pipe() for _ in range(4)]
        setup, setup_end = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        os.set_blocking(feed, False)
        self.stdin = memoryview(stdin)
        feeding = feed if self._feed(feed) else None
        pid = kernel.fork()
        if pid == 0:
            theirs = (stdin_end, out_end, err_end, said_end)
            program.start(self.source, self.compiled, test, theirs, setup_end, self.place.keep, lambda: self._confine(folder))
        for fd in (stdin_end, out_end, err_end, said_end, setup_end):
            os.close(fd)
        outputs = {out: bytearray(), err: bytearray(), said: bytearray()}
        try:
            self._wait(pid, began + self.limits["wall_s"], outputs, feeding)
        finally:
            self._end(pid)
        for fd, kept in outputs.items():
            while self._read(fd, kept):
                pass
        failure = self._told(setup)
        for fd in (feed, out, err, said, setup):
            os.close(fd)
        if self.watched:
            os.write(self.place.watch, WATCH.pack(0, 0, 0, 0))
        report = REPORT.pack(STOPPED.index(self.stopped), self.status or 0, time.monotonic() - began, self.cpu_s)
        frames.write_frame(RESULTS, {}, report, *outputs.values(), failure)

    def _told(self, setup: int) -> bytes:
        """Keep the compiled program of the first test that has one; returns why the program could not be started, or nothing."""
        if self.compiled and self.status != program.SETUP_FAILED:
            return b""
        told = os.read(setup, CHUNK)
        self.compiled = self.compiled or program.known_code(told)
        return told[1:] if told[:1] == program.FAILED else b""

    def _confine(self, folder: str) -> None:
        os.chdir(folder)
        self.place.confine(self.limits, folder)

    def _wait(self, pid: int, deadline: float, outputs: dict[int, bytearray], feeding: int | None) -> None:
        """Move bytes until the process has ended or has had its share."""
        over = _exit_descriptor(pid)
        pause = WITHOUT_DESCRIPTOR_S if over is None else LOOK_EVERY_S
        listening = {fd for fd in (*outputs, over, feeding) if fd is not None}
        for fd in listening:
            self.poller.register(fd, select.POLLOUT if fd == feeding else select.POLLIN)
        look = time.monotonic() + pause
        while self.status is None and self.stopped is None:
            if (now := time.monotonic()) >= look:
                look = now + pause
                self._reap(pid)
                self._ask_to_watch()
            if now >= deadline:
                self.stopped = "timeout"
            for fd, _ in self.poller.poll(max(0.0, 1000 * (min(look, deadline) - now))):
                if fd == over:
                    self._reap(pid)
                elif fd == COMMANDS:
                    raise frames.ClosedError("the trainer is gone")
                elif fd == self.place.alarm:
                    self._alarm()
                elif not (self._feed(fd) if fd == feeding else self._read(fd, outputs[fd])):
                    self.poller.unregister(fd)
                    listening.remove(fd)
        for fd in listening:
            self.poller.unregister(fd)
        if over is not None:
            os.close(over)

    def _feed(self, fd: int) -> bool:
        """Write what the pipe takes; returns whether there is more."""
        try:
            while self.stdin:
                self.stdin = self.stdin[os.write(fd, self.stdin[:CHUNK]) :]
        except BlockingIOError:
            return True
        except BrokenPipeError:
            pass  # the program does not want to read it
        # The number stays taken, the pipe is closed: the program sees its end.
        os.dup2(self.place.watch, fd)
        return False

    def _read(self, fd: int, kept: bytearray) -> bool:
        """Take what is there and keep what a program may write; returns False at the end."""
        chunk = os.read(fd, CHUNK)
        kept += chunk
        if len(kept) > self.most:
            del kept[self.most :]
            self.stopped = self.stopped or "output"
        return bool(chunk)

    def _ask_to_watch(self) -> None:
        """Only once a program has run for a while: most are over before anyone could look."""
        if not self.watched:
            self.watched = True
            disk = 0 if self.place.disk_is_bounded else self.limits["disk_mb"] << 20
            processes = 0 if self.place.processes_are_bounded else self.limits["processes"]
            os.write(self.place.watch, WATCH.pack(self.number, self.limits["memory_mb"] << 20, disk, processes))

    def _alarm(self) -> None:
        number, what = ALARM.unpack(os.read(self.place.alarm, ALARM.size))
        if number == self.number:
            self.stopped = ALARMS[what]

    def _reap(self, main: int) -> bool:
        """Collect what has ended, orphans of the program included; returns whether a process is left."""
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            self.cpu_s += usage.ru_utime + usage.ru_stime
            if pid == main:
                self.status = os.waitstatus_to_exitcode(status)

    def _end(self, main: int) -> None:
        """Kill and collect until no process of the job is left but this one."""
        while self._reap(main):
            self.place.kill_all()
            time.sleep(0.0005)


def _exit_descriptor(pid: int) -> int | None:
    """A descriptor that is readable once the process has ended; None where the system has none (Linux before 5.3)."""
    try:
        return os.pidfd_open(pid)
    except OSError:
        return None
