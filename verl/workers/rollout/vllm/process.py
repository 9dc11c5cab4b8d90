"""The engine's own process as vLLM finds it: its environment, its log, and that it ends with the worker that started it."""

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
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PARENT, LOG = "VERL_MAS_ENGINE_PARENT", "VERL_MAS_ENGINE_LOG"
# What vLLM adds to a folder for the path of a socket, and the longest that Linux takes.
SOCKET_NAME, LONGEST_SOCKET = len("/") + len(str(uuid.UUID(int=0))), 107
LOG_TAIL_BYTES = 1 << 20
_ERROR = re.compile(r"(?:^|\] )((?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt): .*)$", re.MULTILINE)
_PR_SET_PDEATHSIG = 1
# A rank's place in its worker group means nothing to the engine, which is whole in itself.
_NOT_INHERITED = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def engine_environment(
    device: str, num_threads: int, gpus: str = "", *, log: Path | None = None, scratch: Path | None = None
) -> dict[str, str]:
    """What a vLLM engine needs in its environment; what the user has set stays, apart from what the engine is built upon.

    Args:
        device: cpu or cuda.
        num_threads: of each of its processes on a CPU; 0 leaves the default.
        gpus: CUDA_VISIBLE_DEVICES of its processes; empty for what this one sees.
        log: what they write goes there; None leaves it to this process's streams.
        scratch: folder for their sockets, and on a CPU for their temporary files; None takes the usual one.
    """
    needed = {
        PARENT: str(os.getpid()),
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",  # a fork of a process with Ray or gRPC threads hangs
        "VLLM_USE_V2_MODEL_RUNNER": "0",  # patches/vllm_full_log_probs.py is for the sampler of V1
        "VLLM_HOST_IP": "127.0.0.1",
        # Its processes are on one node; Gloo and NCCL would listen where the host's name points to.
        "GLOO_SOCKET_IFNAME": "lo",
        "NCCL_SOCKET_IFNAME": "lo",
        "VLLM_NO_USAGE_STATS": "1",
    }
    if device == "cpu":
        needed |= {
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the model lives in the engine's process, not in a third one
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # engines that pin threads would all take the same cores
            "TORCHDYNAMO_DISABLE": "1",  # compiling the sampler's helpers takes longer than they ever save
        }
        if num_threads > 0:
            needed["OMP_NUM_THREADS"] = str(num_threads)
    elif gpus:
        needed["CUDA_VISIBLE_DEVICES"] = gpus
    if log is not None:
        needed |= {LOG: str(log), "VLLM_LOGGING_STREAM": f"ext://{__name__}.VLLM_STREAM"}
    if scratch is not None and len(str(scratch)) + SOCKET_NAME <= LONGEST_SOCKET:
        needed["VLLM_RPC_BASE_PATH"] = str(scratch)
    if scratch is not None and device == "cpu":
        needed["TMPDIR"] = str(scratch)  # the files by which its processes find each other are never removed
    return {"VLLM_LOGGING_LEVEL": os.environ.get("VLLM_LOGGING_LEVEL", "INFO" if log else "ERROR")} | needed


class EngineLog:
    """The file that an engine's processes write to; of an engine without a run it is a temporary one, kept only when the engine died.

    Args:
        path: of the log, which is appended to; empty for a temporary one.
    """

    def __init__(self, path: str = "") -> None:
        self._kept = bool(path)
        self.path = Path(path or Path(tempfile.gettempdir()) / f"verl-mas-engine-{os.getpid()}-{uuid.uuid4().hex[:12]}.log")
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._begin = self.path.stat().st_size if self.path.exists() else 0

    def cause_of_death(self, exit_code: int | None, otherwise: str = "") -> str:
        """Why the engine is gone, in one line that names the log.

        Args:
            exit_code: of its process, negative for a signal; None while it has none.
            otherwise: what to say where the log has no error.
        """
        self._kept = True
        error = self.last_error()
        if exit_code is not None and exit_code < 0:
            error = f"killed by {signal.Signals(-exit_code).name}"
            if exit_code == -signal.SIGKILL:
                error += " (the kernel does so when memory runs out: lower actor_rollout_ref.rollout.max_num_seqs, or see who else uses it)"
        why = " ".join((error or otherwise or f"it ended with status {exit_code} and said nothing").split())
        return f"{why}; its log is {self.path}" if self.path.exists() else why

    def last_error(self) -> str:
        """The last exception that was written since this object was made, or nothing."""
        with suppress(OSError), self.path.open("rb") as file:
            file.seek(max(self._begin, self.path.stat().st_size - LOG_TAIL_BYTES))
            found = _ERROR.findall(file.read().decode(errors="replace"))
            return str(found[-1]).strip() if found else ""
        return ""

    def close(self) -> None:
        """Remove a log that nobody was sent to."""
        if not self._kept:
            self.path.unlink(missing_ok=True)


@contextmanager
def environment(values: dict[str, str]) -> Iterator[None]:
    """These variables in this process for as long as the block, for children to inherit."""
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


def unname_shared_memory() -> None:
    """Remove the names of the memory that processes of an engine on a CPU share, which vLLM never does.

    Call it when all of them have mapped it; it is then given back when the last of them ends, also when that is killed.
    """
    name = os.environ.get("VLLM_DIST_IDENT")
    for file in Path("/dev/shm").glob(f"{name}-*-cpushm_*") if name else ():
        file.unlink(missing_ok=True)


def named_shared_memory(pids: Iterable[int]) -> list[Path]:
    """Return the files in /dev/shm that processes have mapped and that still have a name."""
    lines: list[str] = []
    for pid in pids:
        with suppress(OSError):
            lines += Path(f"/proc/{pid}/maps").read_text().splitlines()
    return sorted({Path(line.split(maxsplit=5)[5]) for line in lines if "/dev/shm/" in line and not line.endswith("(deleted)")})


def unname_semaphores() -> None:
    """Remove the names of the semaphores that this process made, which are of no use once all have opened them; they go on working.

    A killed process removes none, and what does it later is killed itself when Ray ends a worker.
    """
    for finalizer in list(getattr(multiprocessing.util, "_finalizer_registry", {}).values()):
        if getattr(finalizer, "_callback", None) is multiprocessing.synchronize.SemLock._cleanup:  # type: ignore[attr-defined]
            finalizer()


def adopt_children() -> None:
    """Let the processes that this one starts from now on end with it, as it ends with the one that started it (`end_with_parent`)."""
    os.environ[PARENT] = str(os.getpid())


def _is_of_an_engine() -> bool:
    """The parent started this process for an engine."""
    started_by = multiprocessing.parent_process()
    return os.environ.get(PARENT) in (str(os.getppid()), str(started_by and started_by.pid))


def end_with_parent() -> None:
    """Have the kernel kill this process when its parent dies, if the parent started it for an engine; elsewhere do nothing."""
    if not _is_of_an_engine():
        return
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.environ[PARENT] != str(os.getppid()):  # it died before the call
        os._exit(1)


class _Nowhere(io.TextIOBase):
    """A stream that keeps nothing."""

    def write(self, text: str) -> int:
        return len(text)


def _vllm_stream() -> io.TextIOBase:
    """In an engine's process, have all output go to its log from now on; elsewhere vLLM is silent: what it says of an engine that is gone
    is said in one line by who asked."""
    if LOG not in os.environ or not _is_of_an_engine():
        return _Nowhere()
    with suppress(OSError):
        log = os.open(os.environ[LOG], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(log, sys.stdout.fileno())
        os.dup2(log, sys.stderr.fileno())
        os.close(log)
    return sys.stderr  # type: ignore[return-value]


# Named by VLLM_LOGGING_STREAM: vLLM imports this module for it before anything else in each of its processes.
VLLM_STREAM = _vllm_stream()
