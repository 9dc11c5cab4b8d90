"""Grader processes, started on demand, killed and replaced when a comparison hangs."""

from __future__ import annotations

import asyncio
import atexit
import json
import logging
import os
import queue
import select
import signal
import subprocess
import sys
import threading
import time
from collections import OrderedDict
from enum import Enum
from pathlib import Path
from typing import NamedTuple

from agent_system.threads import DaemonExecutor

logger = logging.getLogger(__name__)

SCRIPT = Path(__file__).with_name("grader_process.py")
START_TIMEOUT_S = 120.0
WALL_PER_CPU_SECOND = 10.0
MEMORY_BYTES = 2 << 30
CACHE_SIZE = 4096


class GraderError(RuntimeError):
    """A grader process cannot be started (its parser is missing, the process limit is reached).
    Unreadable answers do not raise it.
    """


class Verdict(Enum):
    """Result of one comparison. Only `EQUAL` scores."""

    EQUAL = "equal"
    DIFFERENT = "different"
    TIMEOUT = "timeout"
    ERROR = "error"


class Approximate(NamedTuple):
    """A numeric answer that must be close to the truth only (`grader_process.close`).

    Attributes:
        values: its possible values, as fractions: `1/3`.
        tolerance: relative.
        all_digits: the answer is written without an exponent.
    """

    values: tuple[str, ...]
    tolerance: float
    all_digits: bool


class GraderPool:
    """Pool of up to `workers` processes that compare LaTeX answers; threads and event loops may
    share it.

    Args:
        workers: maximum number of processes; 0 means the number of cores, at most four.
        timeout_s: CPU seconds of one comparison. The limit of wall-clock time is ten times that.
    """

    def __init__(self, workers: int = 0, timeout_s: float = 3.0) -> None:
        self.workers = workers or min(4, os.cpu_count() or 1)
        self.timeout_s = timeout_s
        self.timeouts = 0
        self._processes: set[_GraderProcess] = set()
        # Last in, first out: a process that runs is taken before another one is started.
        self._idle: queue.LifoQueue[_GraderProcess | None] = queue.LifoQueue()
        self._threads: DaemonExecutor | None = None
        self._lock = threading.Lock()
        self._cache: OrderedDict[tuple[str, str, Approximate | None], Verdict] = OrderedDict()
        self._fill()
        atexit.register(self.close)

    async def compare(self, answer: str, truth: str, number: Approximate | None = None) -> Verdict:
        """Compare in a thread; with a `number` the answer must be close only. Raises GraderError
        when no grader can be started.
        """
        if (cached_verdict := self._cached(answer, truth, number)) is not None:
            return cached_verdict
        with self._lock:
            if self._threads is None:
                self._threads = DaemonExecutor(self.workers)
            threads = self._threads
        return await asyncio.get_running_loop().run_in_executor(
            threads, self.compare_now, answer, truth, number
        )

    def compare_now(self, answer: str, truth: str, number: Approximate | None = None) -> Verdict:
        """Compare in the calling thread."""
        # Another thread may have compared the same meanwhile.
        if (cached_verdict := self._cached(answer, truth, number)) is not None:
            return cached_verdict
        process = self._idle.get()
        try:
            if process is None or not process.alive:
                process = self._start()
            verdict = process.compare(answer, truth, number)
        # Its answer may still come, and would be read as that to the next question.
        except BaseException:
            self._retire(process)
            raise
        if process.alive:
            self._idle.put(process)
        else:
            self._retire(process)
        self._remember((answer, truth, number), verdict)
        return verdict

    @property
    def pids(self) -> list[int]:
        """Process ids of the running graders."""
        with self._lock:
            return [process.pid for process in self._processes if process.alive]

    def close(self) -> None:
        """Stop all graders. A pool that is used again starts new ones."""
        with self._lock:
            processes = self._processes
            self._processes = set()
            threads = self._threads
            self._threads = None
        for process in processes:
            process.kill()
        if threads is not None:
            threads.shutdown()

    def _fill(self) -> None:
        # None is a slot without a process, which is started when the slot is first used.
        for _ in range(self.workers):
            self._idle.put(None)

    def _start(self) -> _GraderProcess:
        process = _GraderProcess(self.timeout_s)
        with self._lock:
            self._processes.add(process)
        process.wait_until_ready()
        return process

    def _retire(self, process: _GraderProcess | None) -> None:
        if process is not None:
            process.kill()
            with self._lock:
                self._processes.discard(process)
        self._idle.put(None)

    def _cached(self, answer: str, truth: str, number: Approximate | None) -> Verdict | None:
        key = (answer, truth, number)
        with self._lock:
            if key in self._cache:
                self._cache.move_to_end(key)
            return self._cache.get(key)

    def _remember(self, key: tuple[str, str, Approximate | None], verdict: Verdict) -> None:
        with self._lock:
            self.timeouts += verdict is Verdict.TIMEOUT
            if verdict is Verdict.ERROR:
                # not cached: the cause may be temporary, such as a lack of memory
                return
            self._cache[key] = verdict
            if len(self._cache) > CACHE_SIZE:
                self._cache.popitem(last=False)


class _GraderProcess:
    """One child; used by one thread at a time."""

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        # Only the variables needed to find Python and its packages: the child must not see API
        # keys.
        env = {
            name: os.environ[name]
            for name in ("PATH", "PYTHONPATH", "HOME", "LANG", "LD_LIBRARY_PATH")
            if name in os.environ
        }
        self._child = subprocess.Popen(
            [sys.executable, str(SCRIPT), str(timeout_s), str(MEMORY_BYTES)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=env,
            # Ctrl-C is for the trainer.
            start_new_session=True,
        )
        self.pid = self._child.pid
        self._buffer = b""

    @property
    def alive(self) -> bool:
        return self._child.poll() is None

    def wait_until_ready(self) -> None:
        if self._line(START_TIMEOUT_S) is None:
            self.kill()
            raise GraderError(
                f"a math grader did not start (exit code {self._child.returncode}); is "
                "latex2sympy2_extended installed? pip install latex2sympy2_extended, then try: "
                f"{sys.executable} {SCRIPT} 3 {MEMORY_BYTES}"
            )

    def compare(self, answer: str, truth: str, number: Approximate | None) -> Verdict:
        assert self._child.stdin is not None
        try:
            self._child.stdin.write(json.dumps([answer, truth, *(number or ())]).encode() + b"\n")
            self._child.stdin.flush()
        except BrokenPipeError:
            return self._died()
        line = self._line(WALL_PER_CPU_SECOND * self.timeout_s)
        if line is None:
            return self._died()
        reply = json.loads(line)
        if "error" in reply:
            return Verdict.ERROR
        return Verdict.EQUAL if reply["correct"] is True else Verdict.DIFFERENT

    def kill(self) -> None:
        self._child.kill()
        self._child.wait()
        for pipe in (self._child.stdin, self._child.stdout):
            if pipe is not None and not pipe.closed:
                try:
                    pipe.close()
                except BrokenPipeError:
                    logger.debug("grader %d ended before its pipe was closed", self.pid)

    def _died(self) -> Verdict:
        running = self.alive
        self.kill()
        # A child that is still running after the wall-clock limit, or ended by its CPU timer,
        # hangs. Any other end (memory) is an error.
        return Verdict.TIMEOUT if running or self._child.returncode == -signal.SIGPROF else Verdict.ERROR

    def _line(self, timeout_s: float) -> bytes | None:
        """Return the next line of the child, or None when it ends or after `timeout_s`."""
        assert self._child.stdout is not None
        end = time.monotonic() + timeout_s
        # poll because select rejects descriptors above 1023.
        readable = select.poll()
        readable.register(self._child.stdout, select.POLLIN)
        while b"\n" not in self._buffer:
            if not readable.poll(max(0.0, end - time.monotonic()) * 1000):
                return None
            chunk = os.read(self._child.stdout.fileno(), 65536)
            if not chunk:
                self._child.wait()
                return None
            self._buffer += chunk
        line, self._buffer = self._buffer.split(b"\n", 1)
        return line
