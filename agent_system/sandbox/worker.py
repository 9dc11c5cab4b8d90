"""One sandbox process as the trainer uses it: started clean, given jobs one at a time, killed when
it does not answer.
"""

from __future__ import annotations

import os
import select
import struct
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from agent_system.errors import SandboxError
from agent_system.sandbox.jail import frames, scratch
from agent_system.sandbox.job import Job, Test
from agent_system.sandbox.result import Reason, RunResult, from_report

FOLDER = Path(__file__).parent
# The package `jail` is imported from the end of the path, which is then removed: its modules must
# not shadow Python's.
BOOT = "import sys; sys.path.append(sys.argv[1]); from jail.main import main; sys.path.pop(); main()"
# The environment has nothing of the trainer's, since a program can read it. Libraries are bound and
# hashes fixed once for all runs. Integers of any length have a text, as where the programs of
# public data sets were accepted.
ENVIRONMENT = {
    "PYTHONHASHSEED": "0",
    "PYTHONINTMAXSTRDIGITS": "0",
    "LD_BIND_NOW": "1",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
}
START_TIMEOUT_S = 120.0
# Time for an answer beyond the limit of its run, on a busy machine.
GRACE_S = 20.0
END_TIMEOUT_S = 3.0
POLL_INTERVAL_S = 0.2


class WorkerError(RuntimeError):
    """The process does not answer, or not in the protocol; it must be killed."""


class SandboxWorker:
    """A sandbox process; used by one thread at a time.

    Args:
        level: see `levels`.
        packages: file or folder name -> path of packages that programs may import.
        imports: names to import from them in advance.

    Raises:
        SandboxError: the level does not work here; the message says why.
    """

    def __init__(self, level: str, packages: dict[str, str], imports: tuple[str, ...]) -> None:
        self.scratch = tempfile.mkdtemp(prefix="sandbox-")
        imports_folder = os.path.join(self.scratch, "imports")
        os.mkdir(imports_folder)
        for name, path in packages.items():
            os.symlink(path, os.path.join(imports_folder, name))
        # An interpreter that is installed elsewhere needs it to find its libraries.
        passed = {name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ}
        self._child = subprocess.Popen(
            [sys.executable, "-S", "-s", "-P", "-c", BOOT, str(FOLDER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**ENVIRONMENT, **passed},
            cwd="/",
            # Ctrl-C is for the trainer.
            start_new_session=True,
        )
        assert self._child.stdin is not None and self._child.stdout is not None
        self.pid = self._child.pid
        self._commands, self._results = self._child.stdin.fileno(), self._child.stdout.fileno()
        # A worker that does not read must not hold this thread beyond its deadline.
        os.set_blocking(self._commands, False)
        self._reader = frames.FrameReader(self._results)
        settings = {
            "level": level,
            "stdlib": sysconfig.get_path("stdlib"),
            "packages": packages,
            "imports": imports,
            "shown": imports_folder,
            "scratch": self.scratch,
        }
        try:
            wait = _waiting(START_TIMEOUT_S)
            frames.write_frame(self._commands, {"settings": settings}, wait=wait(select.POLLOUT))
            answer, _ = self._reader.read(wait(select.POLLIN))
        except (OSError, EOFError, ValueError, WorkerError) as error:
            self.kill()
            raise SandboxError(f"a sandbox process did not start: {error}") from error
        if "error" in answer:
            self.kill()
            raise SandboxError(str(answer["error"]))

    @property
    def alive(self) -> bool:
        return self._child.poll() is None

    def run(self, job: Job) -> Iterator[RunResult]:
        """Run a job and yield the result of each test as it arrives; stop early after
        `max_timeouts` timeouts.

        Raises:
            WorkerError: the worker must be killed.
        """
        try:
            wait = _waiting(GRACE_S, job)
            frames.write_frame(
                self._commands, {"limits": vars(job.limits)}, job.source, wait=wait(select.POLLOUT)
            )
            timeouts = 0
            for test in job.tests:
                result = self._test(job, test)
                yield result
                timeouts += result.reason in (Reason.TIMEOUT, Reason.CPU)
                if 0 < job.max_timeouts <= timeouts:
                    break
            frames.write_frame(self._commands, {"mode": "end"}, wait=_waiting(GRACE_S)(select.POLLOUT))
        except (OSError, EOFError, ValueError, struct.error) as error:
            raise WorkerError(f"{type(error).__name__}: {error}") from error

    def _test(self, job: Job, test: Test) -> RunResult:
        message = job.message(test)
        if isinstance(message, RunResult):
            return message
        header, stdin = message
        wait = _waiting(job.limits.wall_s + GRACE_S, job)
        frames.write_frame(self._commands, header, stdin, wait=wait(select.POLLOUT))
        _, blobs = self._reader.read(wait(select.POLLIN))
        return from_report(blobs, job.limits)

    def kill(self) -> None:
        """End the process with all its programs by closing its pipes; kill it if it does not end in
        time.
        """
        for pipe in (self._child.stdin, self._child.stdout):
            with suppress(BrokenPipeError):
                pipe.close()
        try:
            self._child.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
        scratch.remove(self.scratch)


def _waiting(seconds: float, job: Job | None = None) -> Callable[[int], Callable[[int], None]]:
    """Return a factory: event of `select.poll` -> function that waits for the event on a
    descriptor; all share one deadline.

    The functions raise WorkerError after the deadline, and when the job has been abandoned.
    """
    deadline = time.monotonic() + seconds

    def on(event: int) -> Callable[[int], None]:
        def wait(fd: int) -> None:
            poller = select.poll()
            poller.register(fd, event)
            while not poller.poll(1000 * POLL_INTERVAL_S):
                if job is not None and job.abandoned.is_set():
                    raise WorkerError("the run was abandoned by its caller")
                if time.monotonic() > deadline:
                    raise WorkerError(f"no answer within {seconds:g} s")

        return wait

    return on


def ended_by_sandbox(error: Exception) -> RunResult:
    """Return the result of a run that the sandbox could not finish."""
    return RunResult(Reason.SANDBOX, message=str(error))
