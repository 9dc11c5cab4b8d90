"""Backend that runs programs on this machine: a pool of warm processes at the strongest level that
works.
"""

from __future__ import annotations

import atexit
import logging
import os
import queue
import tempfile
import threading
from collections.abc import Sequence
from concurrent.futures import Future

from agent_system.errors import SandboxError
from agent_system.sandbox.job import Job
from agent_system.sandbox.levels import LEVELS, describe, level_error, rank
from agent_system.sandbox.packages import find_packages
from agent_system.sandbox.result import Reason, RunResult
from agent_system.sandbox.sandbox import Sandbox, padded
from agent_system.sandbox.worker import SandboxWorker, WorkerError, ended_by_sandbox
from agent_system.threads import DaemonExecutor
from verl.trainer.config.sandbox import SandboxConfig, SandboxLimitsConfig

logger = logging.getLogger(__name__)

PROBE_LIMITS = SandboxLimitsConfig(cpu_s=10, wall_s=60, memory_mb=256)
# Reads the name of a file of the trainer and prints the operations on it that succeed, then 42.
PROBE_PROGRAM = """
import os
path = input()
attempts = {
    "open": lambda: os.close(os.open(path, os.O_RDONLY)), "write": lambda: os.close(os.open(path, os.O_WRONLY)),
    "chmod": lambda: os.chmod(path, 0o600), "utime": lambda: os.utime(path), "truncate": lambda: os.truncate(path, 0),
    "lock": lambda: __import__("fcntl").flock(0, 2),
}
for name, attempt in attempts.items():
    try:
        attempt()
        print(name, end=" ")
    except OSError:
        pass
print(6 * 7)
"""
# Operations that may succeed, by level.
TOLERATED = {"rlimits": {"open", "write", "chmod", "utime", "truncate", "lock"}, "seccomp": {"open", "write"}}


class LocalSandbox(Sandbox):
    """Runs programs in processes of this machine, at most `settings.workers` concurrently.

    Args:
        settings: the keys under `sandbox`.
        levels: isolation levels to choose from; default: all, of which the strongest that works is
            taken.

    Attributes:
        level: isolation level of the programs; see `levels`.

    Raises:
        SandboxError: no level of `sandbox.min_level` or better works here, or a package is missing.
    """

    def __init__(self, settings: SandboxConfig, levels: Sequence[str] = LEVELS) -> None:
        super().__init__(settings)
        self.workers = settings.workers or os.cpu_count() or 1
        self.restarts = 0
        self._packages = find_packages(settings.packages)
        self._lock = threading.Lock()
        self._alive: set[SandboxWorker] = set()
        # Last in, first out: a worker that runs is taken before one that would have to be started.
        self._slots: queue.LifoQueue[SandboxWorker | None] = queue.LifoQueue()
        self._threads = DaemonExecutor(self.workers)
        self._closed = False
        self.level, first = self._strongest_level(levels)
        for _ in range(self.workers - 1):
            # the worker is started when the slot is first used
            self._slots.put(None)
        self._slots.put(first)
        atexit.register(self.close)
        logger.info("sandbox: %s", self.describe())

    def describe(self) -> str:
        description = f"level {self.level}, {self.workers} workers; programs have {describe(self.level)}"
        if rank(self.level) < rank("landlock") and os.geteuid() != 0:
            description += "; they can read and write all files of this user"
        return description

    @property
    def pids(self) -> list[int]:
        """Process ids of the running workers."""
        with self._lock:
            return [worker.pid for worker in self._alive if worker.alive]

    def close(self) -> None:
        with self._lock:
            workers = self._alive
            self._alive = set()
            self._closed = True
        for worker in workers:
            worker.kill()
        self._threads.shutdown()
        atexit.unregister(self.close)

    def stats(self) -> dict[str, float]:
        return super().stats() | {"restarts": float(self.restarts)}

    def _submit(self, job: Job) -> Future[list[RunResult]]:
        if self._closed:
            raise SandboxError("this sandbox is closed; make another one")
        return self._threads.submit(self._run_now, job)

    def _run_now(self, job: Job) -> list[RunResult]:
        results: list[RunResult] = []
        if not job.tests:
            return results
        worker = self._slots.get()
        try:
            if worker is None or not worker.alive or job.again:
                self._retire(worker)
                worker = self._start(self.level)
            for result in worker.run(job):
                results.append(result)
        except (WorkerError, SandboxError) as error:
            # Otherwise it was ended on purpose.
            if not self._closed and not job.abandoned.is_set():
                logger.warning("a sandbox process is replaced: %s", error)
            self._retire(worker)
            worker = None
            return padded(job, results, ended_by_sandbox(error))
        finally:
            self._slots.put(worker)
        return padded(job, results, RunResult(Reason.SKIPPED))

    def _start(self, level: str) -> SandboxWorker:
        worker = SandboxWorker(level, self._packages, tuple(self.settings.packages))
        with self._lock:
            # `close` may have run while the process started.
            closed = self._closed
            self._alive.add(worker)
        if closed:
            worker.kill()
            raise SandboxError("this sandbox was closed")
        return worker

    def _retire(self, worker: SandboxWorker | None) -> None:
        if worker is not None:
            self.restarts += 1
            worker.kill()
            with self._lock:
                self._alive.discard(worker)

    def _strongest_level(self, levels: Sequence[str]) -> tuple[str, SandboxWorker]:
        """Return the level to use, of `levels`, with a probed worker. Raise SandboxError, naming a
        weaker level that works, if none suffices.
        """
        least = self.settings.min_level
        missing: dict[str, str] = {}
        for level in sorted(levels, key=rank, reverse=True):
            try:
                worker = self._probe(level)
            except SandboxError as error:
                missing[level] = str(error)
                continue
            if rank(level) >= rank(least):
                return level, worker
            # All levels after the first that works are weaker.
            worker.kill()
            raise SandboxError(level_error(level, least, missing))
        raise SandboxError(level_error(None, least, missing))

    def _probe(self, level: str) -> SandboxWorker:
        """Start a worker and run a program that tries forbidden operations. Raise SandboxError
        listing those that succeed.
        """
        worker = self._start(level)
        try:
            with tempfile.NamedTemporaryFile(prefix="sandbox-probe-") as file:
                (result,) = worker.run(Job(PROBE_PROGRAM, [file.name], PROBE_LIMITS))
        except WorkerError as error:
            self._retire(worker)
            raise SandboxError(str(error)) from error
        *succeeded, answer = result.stdout.split() or [""]
        broken = set(succeeded) - TOLERATED.get(level, set())
        if answer == "42" and result.ok and not broken:
            return worker
        self._retire(worker)
        if broken:
            raise SandboxError(f"a program can do this to files of the trainer: {', '.join(sorted(broken))}")
        raise SandboxError(
            result.message or f"a program that prints 42 ended with {result.reason}: {result.stderr[-500:]}"
        )
