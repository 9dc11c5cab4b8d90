"""What driver and worker send each other, as pickles between processes of one run; no text of a
model is ever unpickled.
"""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Protocol

from agent_system.errors import AgentSystemError
from verl.trainer.config.sandbox import SandboxConfig


class EnvWorkerError(AgentSystemError):
    """The worker of an environment died, was replaced, or could not start."""


class WorkerGoneError(Exception):
    """A transport's worker has ended; the message says how."""


@dataclass(frozen=True)
class EnvSource:
    """How a worker builds environments.

    Attributes:
        name: registered name of the environment.
        params: its options (`env.params`).
        plugins: modules to import first (`agent.plugins`).
        sandbox: settings of the worker's sandbox, started if the environment uses one.
        threads: maximum number of threads for blocking methods in one worker.
        memory_bytes: resident memory above which a worker is replaced; 0: no limit; None: half of
            its node's memory / `workers`, at least 2 GiB.
        workers: number of workers.
    """

    name: str
    params: Mapping[str, Any] = field(default_factory=dict)
    plugins: tuple[str, ...] = ()
    sandbox: SandboxConfig = field(default_factory=SandboxConfig)
    threads: int = 1024
    memory_bytes: int | None = None
    workers: int = 1


@dataclass(frozen=True)
class WorkerRequest:
    """A call for a worker.

    Attributes:
        handle: number of the environment, chosen by the driver.
        operation: name of a method of `EnvHost`.
        args: its arguments.
    """

    handle: int
    operation: str
    args: tuple[Any, ...] = ()


@dataclass(frozen=True)
class WorkerFailure:
    """An exception of the worker: name of its type, message, and innermost line as `file.py:12`."""

    kind: str
    message: str
    line: str

    @classmethod
    def of(cls, error: BaseException) -> WorkerFailure:
        """Describe `error`."""
        return cls(type(error).__name__, str(error), innermost_line(error))

    def exception(self) -> Exception:
        """Return an exception whose class has the name of the original one; `innermost_line`
        returns the original line.
        """
        error: Exception = type(self.kind, (RemoteError,), {})(self.message)
        assert isinstance(error, RemoteError)
        error.line = self.line
        return error


class RemoteError(Exception):
    """An exception that was raised in a worker.

    Attributes:
        line: the innermost line there.
    """

    line = ""


class Transport(Protocol):
    """The driver's end of one worker.

    Attributes:
        started: the answer to the start: a pickled None, or a `WorkerFailure`.
    """

    started: Future[bytes]

    def send(self, number: int, payload: bytes) -> Future[bytes]:
        """Send request `number`; the future gets the pickled answer, or WorkerGoneError. Returns at
        once.
        """
        ...

    def kill(self) -> None:
        """End the worker; pending requests fail with WorkerGoneError."""
        ...

    def close(self) -> None:
        """Ask the worker to stop its sandbox and to end; returns at once."""
        ...

    def wait(self) -> None:
        """Wait a few seconds until the worker has ended, then kill it."""
        ...


def innermost_line(error: BaseException) -> str:
    """Return where an exception was raised, as `file.py:12`; empty without a traceback."""
    if isinstance(error, RemoteError):
        return error.line
    frames = traceback.extract_tb(error.__traceback__)
    return f"{frames[-1].filename.rsplit('/', 1)[-1]}:{frames[-1].lineno}" if frames else ""


def pickled(value: Any, what: str) -> bytes:
    """Pickle a value. Raise AgentSystemError naming `what` it is when that is impossible."""
    try:
        return pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
    except Exception as error:  # any __reduce__ may run
        raise AgentSystemError(
            f"{what} cannot be pickled, which env.workers.num>0 needs: {type(error).__name__}: "
            f"{' '.join(str(error).split())}"
        ) from error


def unpickled(data: bytes, what: str) -> Any:
    """Return the value of a pickle. Raise AgentSystemError naming `what` it is when that is
    impossible.
    """
    try:
        return pickle.loads(data)
    except Exception as error:  # any constructor may run
        raise AgentSystemError(
            f"{what} cannot be unpickled, which env.workers.num>0 needs: {type(error).__name__}: "
            f"{' '.join(str(error).split())}"
        ) from error
