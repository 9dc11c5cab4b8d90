"""The engine's own process as vLLM finds it: its environment, and that it ends with the worker that started it."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PARENT = "VERL_MAS_ENGINE_PARENT"
_PR_SET_PDEATHSIG = 1
# A rank's place in its worker group means nothing to the engine, which is whole in itself.
_NOT_INHERITED = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def engine_environment(device: str, num_threads: int, gpus: str = "") -> dict[str, str]:
    """What a vLLM engine needs in its environment; what the user has set stays, apart from what the engine is built upon.

    Args:
        device: cpu or cuda.
        num_threads: of each of its processes on a CPU; 0 leaves the default.
        gpus: CUDA_VISIBLE_DEVICES of its processes; empty for what this one sees.
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
    return {"VLLM_LOGGING_LEVEL": os.environ.get("VLLM_LOGGING_LEVEL", "ERROR")} | needed


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


def adopt_children() -> None:
    """Let the processes that this one starts from now on end with it, as it ends with the one that started it (`end_with_parent`)."""
    os.environ[PARENT] = str(os.getpid())


def end_with_parent() -> None:
    """Have the kernel kill this process when its parent dies, if the parent started it for an engine; elsewhere do nothing."""
    parent, started_by = os.environ.get(PARENT), multiprocessing.parent_process()
    if parent not in (str(os.getppid()), str(started_by and started_by.pid)):
        return
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if parent != str(os.getppid()):  # it died before the call
        os._exit(1)
