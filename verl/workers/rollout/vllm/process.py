"""Processes of a vLLM engine: their environment, their log, and their end together with the worker
that started them.
"""

from __future__ import annotations

import ctypes
import io
import multiprocessing
import multiprocessing.synchronize
import multiprocessing.util
import os
import re
import signal
import sys
import tempfile
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

PARENT = "VERL_MAS_ENGINE_PARENT"
LOG = "VERL_MAS_ENGINE_LOG"
# Set for an engine whose process is forked (fork_server.py).
FORKED = "VERL_MAS_ENGINE_FORKED"
# Length of the name that vLLM appends to a folder for a socket, and the longest socket path of
# Linux.
SOCKET_NAME = len("/") + len(str(uuid.UUID(int=0)))
LONGEST_SOCKET = 107
LOG_TAIL_BYTES = 1 << 20
EXIT_TIMEOUT_S = 20.0
_ERROR = re.compile(r"(?:^|\] )((?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt): .*)$", re.MULTILINE)
_PR_SET_PDEATHSIG = 1
# The engine has ranks of its own, independent of those of the worker group.
_NOT_INHERITED = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def engine_environment(
    device: str, num_threads: int, gpus: str = "", *, log: Path | None = None, scratch: Path | None = None
) -> dict[str, str]:
    """Return the variables that a vLLM engine needs; they override the user's settings only where
    the engine depends on them.

    Args:
        device: cpu or cuda.
        num_threads: of each of its processes on a CPU; 0 keeps the default.
        gpus: CUDA_VISIBLE_DEVICES of its processes; empty for that of this process.
        log: file for their output; None for the streams of this process.
        scratch: folder for their sockets, and on a CPU for their temporary files; None for the
            default folder.
    """
    needed = {
        PARENT: str(os.getpid()),
        # a fork of a process with Ray or gRPC threads hangs
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
        # patches/vllm_full_log_probs.py is for the sampler of V1
        "VLLM_USE_V2_MODEL_RUNNER": "0",
        "VLLM_HOST_IP": "127.0.0.1",
        # Its processes are on one node; by default Gloo and NCCL listen on the address of the
        # host's name.
        "GLOO_SOCKET_IFNAME": "lo",
        "NCCL_SOCKET_IFNAME": "lo",
        "VLLM_NO_USAGE_STATS": "1",
    }
    if device == "cpu":
        needed |= {
            FORKED: "1",
            # the model lives in the engine's process, not in a third one
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            # engines that pin threads would all use the same cores
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            # compiling the sampler's helpers takes longer than it saves
            "TORCHDYNAMO_DISABLE": "1",
        }
        if num_threads > 0:
            needed["OMP_NUM_THREADS"] = str(num_threads)
    elif gpus:
        needed["CUDA_VISIBLE_DEVICES"] = gpus
    if log is not None:
        needed |= {LOG: str(log), "VLLM_LOGGING_STREAM": f"ext://{__name__}.VLLM_STREAM"}
    # A socket cannot have a longer path; vLLM's default folder is short.
    if scratch is not None and len(str(scratch)) + SOCKET_NAME <= LONGEST_SOCKET:
        needed["VLLM_RPC_BASE_PATH"] = str(scratch)
    if scratch is not None and device == "cpu":
        # vLLM never removes the rendezvous files of its processes
        needed["TMPDIR"] = str(scratch)
    return {"VLLM_LOGGING_LEVEL": os.environ.get("VLLM_LOGGING_LEVEL", "INFO" if log else "ERROR")} | needed


class EngineLog:
    """The log file of an engine's processes; for an engine without a run a temporary file, kept
    only when the engine died.

    Args:
        path: of the log, which is appended to; empty for a temporary one.
    """

    def __init__(self, path: str = "") -> None:
        self._keeps_file = bool(path)
        self.path = Path(
            path or Path(tempfile.gettempdir()) / f"verl-mas-engine-{os.getpid()}-{uuid.uuid4().hex[:12]}.log"
        )
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._begin = self.path.stat().st_size if self.path.exists() else 0

    def exit_cause(self, exit_code: int | None, otherwise: str = "") -> str:
        """Return why the engine ended, in one line that names the log.

        Args:
            exit_code: of its process, negative for a signal; None while it has none.
            otherwise: the cause to return if the log has no error.
        """
        # From now on an error names the file.
        self._keeps_file = True
        error = self.last_error()
        # A process that is killed does not log why.
        if exit_code is not None and exit_code < 0:
            error = f"killed by {signal.Signals(-exit_code).name}"
            if exit_code == -signal.SIGKILL:
                error += " (as the kernel does when memory is exhausted: lower actor_rollout_ref.rollout.max_num_seqs, or free memory)"
        why = " ".join(
            (error or otherwise or f"it ended with status {exit_code} and logged no error").split()
        )
        return f"{why}; its log is {self.path}" if self.path.exists() else why

    def last_error(self) -> str:
        """Return the last exception logged since this object was made, or an empty text."""
        with suppress(OSError), self.path.open("rb") as file:
            # The file may hold the log of engines before this one.
            file.seek(max(self._begin, self.path.stat().st_size - LOG_TAIL_BYTES))
            error_lines = _ERROR.findall(file.read().decode(errors="replace"))
            return str(error_lines[-1]).strip() if error_lines else ""
        return ""

    def close(self) -> None:
        """Remove a temporary log, unless `exit_cause` named it."""
        if not self._keeps_file:
            self.path.unlink(missing_ok=True)


@contextmanager
def environment(values: dict[str, str]) -> Iterator[None]:
    """Set these variables of this process inside the block, for children to inherit."""
    before = {name: os.environ.get(name) for name in (*values, *_NOT_INHERITED)}
    try:
        os.environ.update(values)
        for name in _NOT_INHERITED:
            os.environ.pop(name, None)
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def unlink_shared_memory() -> None:
    """Unlink the shared memory of the processes of an engine on a CPU, which vLLM never does.

    Call it when all of them have mapped it; it is then freed when the last of them ends, even if
    killed.
    """
    name = os.environ.get("VLLM_DIST_IDENT")
    for file in Path("/dev/shm").glob(f"{name}-*-cpushm_*") if name else ():
        file.unlink(missing_ok=True)


def named_shared_memory(pids: Iterable[int]) -> list[Path]:
    """Return the files in /dev/shm that processes have mapped and that are not unlinked."""
    lines: list[str] = []
    for pid in pids:
        # The process may have ended.
        with suppress(OSError):
            lines += Path(f"/proc/{pid}/maps").read_text().splitlines()
    return sorted(
        {
            Path(line.split(maxsplit=5)[5])
            for line in lines
            if "/dev/shm/" in line and not line.endswith("(deleted)")
        }
    )


def unlink_semaphores() -> None:
    """Unlink the semaphores that this process made, after all processes have opened them; they keep
    working.

    A killed process unlinks none, and its resource tracker, which would do it later, is killed too
    when Ray ends a worker.
    """
    for finalizer in list(getattr(multiprocessing.util, "_finalizer_registry", {}).values()):
        if getattr(finalizer, "_callback", None) is multiprocessing.synchronize.SemLock._cleanup:  # type: ignore[attr-defined]
            finalizer()


def adopt_children() -> None:
    """Make processes that this one starts from now on end with it, as it ends with its own parent
    (`end_with_parent`).
    """
    os.environ[PARENT] = str(os.getpid())


def _started_for_engine() -> bool:
    """Return whether the parent started this process for an engine."""
    started_by = multiprocessing.parent_process()
    return os.environ.get(PARENT) in (str(os.getppid()), str(started_by and started_by.pid))


def end_with_parent() -> None:
    """Have the kernel kill this process when its parent dies, if the parent started it for an
    engine; elsewhere do nothing.
    """
    if _started_for_engine():
        end_with(int(os.environ[PARENT]))


def end_with(parent: int) -> None:
    """Have the kernel kill this process when `parent`, which started it, dies; end now if it has.

    For a process that is certainly one of an engine: `end_with_parent` takes one whose parent died
    before the call for any other process that inherited the environment.
    """
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if parent != os.getppid():  # it died before the call
        os._exit(1)


class _NullStream(io.TextIOBase):
    """A stream that discards its input."""

    def write(self, text: str) -> int:
        return len(text)


def write_to_log() -> None:
    """Have all output of this process go to the log of its engine, if it has one."""
    if LOG not in os.environ:
        return
    with suppress(OSError):
        log = os.open(os.environ[LOG], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(log, sys.stdout.fileno())
        os.dup2(log, sys.stderr.fileno())
        os.close(log)


def _vllm_stream() -> io.TextIOBase:
    """Return the stream of vLLM's log messages.

    In an engine's process, all output goes to its log from now on; in others messages are
    discarded, since the caller reports an engine that died in one line.
    """
    if LOG not in os.environ or not _started_for_engine():
        return _NullStream()
    write_to_log()
    return sys.stderr  # type: ignore[return-value]


# Set as VLLM_LOGGING_STREAM: each process of vLLM imports this module before anything else.
VLLM_STREAM = _vllm_stream()


def processes_of(llm: Any) -> list[Any]:
    """Return an engine's own process as a `multiprocessing` object; none if the model is in this
    process.
    """
    manager = getattr(getattr(llm.engine_core, "resources", None), "engine_manager", None)
    return list(getattr(manager, "processes", ()))


def children_of(pids: Iterable[int]) -> list[psutil.Process]:
    """Return the processes below processes that may have ended."""
    children = []
    for pid in pids:
        with suppress(psutil.NoSuchProcess):
            children += psutil.Process(pid).children(recursive=True)
    return children


@contextmanager
def ended(processes: Sequence[Any]) -> Iterator[None]:
    """Wait after the block, which ends processes, until they and those below them are gone,
    `EXIT_TIMEOUT_S` seconds each at most.
    """
    below = children_of(process.pid for process in processes)
    yield
    # a killed process takes a moment to end on a busy machine
    for process in processes:
        process.join(EXIT_TIMEOUT_S)
    psutil.wait_procs(below, EXIT_TIMEOUT_S)
