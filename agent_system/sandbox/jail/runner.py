"""Runs the tests of a job: starts each program with its input, reads its output, ends it, reaps all
of its processes, and reports.

Memory pages that this process touches are copied for every program that it forks, so it does little
and imports few modules.
"""

from __future__ import annotations

import os
import select
import struct
import time
from typing import Any

from . import frames, kernel, program
from .place import ALARM, ALARMS, COMMANDS, RESULTS, WATCH, JobContext

# To the trainer, before the program's output: index in `STOPPED`, exit status, seconds of
# wall-clock time, seconds of CPU time.
REPORT = struct.Struct("!bidd")
STOPPED = (None, "timeout", "output", "memory", "disk", "processes")
CHUNK = 65536
LOOK_EVERY_S = 0.05
# Most programs end within this time; their output is read at once then. What a pipe cannot take
# waits so long.
WITHOUT_LOOK_S = 0.01
WITHOUT_DESCRIPTOR_S = 0.005


class Runner:
    """Runs the tests of one job.

    Attributes:
        number: number of the run, unique in this worker: a late alarm must not end another run.
        stopped: why the test was ended by the runner; None while it runs and when it ended by
            itself.
        status: exit status of its process, negative for a signal; None while it runs.
        cpu_s: CPU time of its processes that have ended.
        compiled: the program as compiled by the first test; only processes of the program load it.
            Empty before.
    """

    def __init__(self, context: JobContext, source: str, limits: dict[str, Any]) -> None:
        self.context = context
        self.source = source
        self.limits = limits
        self.compiled = b""
        self.most = limits["output_kb"] * 1024
        self.number = 0
        self.out = context.streams.open_reader(1)
        self.err = context.streams.open_reader(2)
        self.poller = select.poll()
        # Of no event: the end of the channel is reported all the same.
        self.poller.register(COMMANDS, 0)
        self.poller.register(context.alarm, select.POLLIN)

    def run(self, test: dict[str, Any], stdin: bytes) -> None:
        """Start the program, wait for its end or end it, kill all of its processes, and report."""
        began = time.monotonic()
        self.number = time.monotonic_ns()
        self.stopped: str | None = None
        self.status: int | None = None
        self.cpu_s = 0.0
        self.watched = False
        folder = self.context.clean(self.limits["disk_mb"] << 20)
        streams = self.context.streams
        streams.fill(stdin)
        stdin_end = streams.open_input()
        out_end = streams.open_writer(1)
        err_end = streams.open_writer(2)
        end, end_end = os.pipe()
        setup, setup_end = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        pid = kernel.fork()
        if pid == 0:
            pipes = (stdin_end, out_end, err_end, end_end)
            program.start(
                self.source,
                self.compiled,
                test,
                pipes,
                setup_end,
                self.context.keep,
                lambda: self._confine(folder),
            )
        outputs = {self.out: bytearray(), self.err: bytearray(), end: bytearray()}
        try:
            over = _exit_descriptor(pid)
            soon = over is not None and select.select((over,), (), (), WITHOUT_LOOK_S)[0]
            for fd in (stdin_end, out_end, err_end, end_end, setup_end):
                os.close(fd)
            if not soon:
                self._wait(pid, over, began + self.limits["wall_s"], outputs)
            if over is not None:
                os.close(over)
        finally:
            self._end(pid)
        streams.fill(b"")
        # All that could write has ended, so every one of these reads does.
        for fd, output in outputs.items():
            while self._read(fd, output):
                pass
        failure = self._read_setup(setup)
        os.close(end)
        os.close(setup)
        if self.watched:
            os.write(self.context.watch, WATCH.pack(0, 0, 0, 0))
        report = REPORT.pack(
            STOPPED.index(self.stopped), self.status or 0, time.monotonic() - began, self.cpu_s
        )
        frames.write_frame(RESULTS, {}, report, *outputs.values(), failure)

    def _read_setup(self, setup: int) -> bytes:
        """Keep the compiled program of the first test that sends one; return the error if the
        program could not be started.
        """
        if self.compiled and self.status != program.SETUP_FAILED:
            return b""
        message = os.read(setup, CHUNK)
        self.compiled = self.compiled or program.compiled_code(message)
        return message[1:] if message[:1] == program.FAILED else b""

    def _confine(self, folder: str) -> None:
        os.chdir(folder)
        self.context.confine(self.limits, folder)

    def _wait(self, pid: int, over: int | None, deadline: float, outputs: dict[int, bytearray]) -> None:
        """Read the output until the process has ended or exceeds a limit."""
        # Without the descriptor only a look notices the end.
        pause = WITHOUT_DESCRIPTOR_S if over is None else LOOK_EVERY_S
        listening = {fd for fd in (*outputs, over) if fd is not None}
        for fd in listening:
            self.poller.register(fd, select.POLLIN)
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
                    raise frames.ClosedError("the trainer closed the channel")
                elif fd == self.context.alarm:
                    self._alarm()
                elif not self._read(fd, outputs[fd]):
                    self.poller.unregister(fd)
                    listening.remove(fd)
        for fd in listening:
            self.poller.unregister(fd)

    def _read(self, fd: int, output: bytearray) -> bool:
        """Read available output and keep it up to the limit; return False at the end of the pipe."""
        chunk = os.read(fd, CHUNK)
        output += chunk
        if len(output) > self.most:
            del output[self.most :]
            self.stopped = self.stopped or "output"
        return bool(chunk)

    def _ask_to_watch(self) -> None:
        """Ask the watcher to measure the run; not at its start, since most programs end before the
        first measurement.
        """
        if not self.watched:
            self.watched = True
            disk = 0 if self.context.disk_is_bounded else self.limits["disk_mb"] << 20
            processes = 0 if self.context.processes_are_bounded else self.limits["processes"]
            os.write(
                self.context.watch, WATCH.pack(self.number, self.limits["memory_mb"] << 20, disk, processes)
            )

    def _alarm(self) -> None:
        number, what = ALARM.unpack(os.read(self.context.alarm, ALARM.size))
        if number == self.number:
            self.stopped = ALARMS[what]

    def _reap(self, main: int) -> bool:
        """Reap ended processes, orphans of the program included; return whether a process is left."""
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
        """Kill and reap until no process of the job but this one is left."""
        # Repeated: a process may have forked before it was killed.
        while self._reap(main):
            self.context.kill_all()
            time.sleep(0.0005)


def _exit_descriptor(pid: int) -> int | None:
    """Return a descriptor that is readable once the process has ended; None where the system has
    none (Linux before 5.3).
    """
    try:
        return os.pidfd_open(pid)
    except OSError:
        return None
