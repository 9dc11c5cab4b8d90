"""The engine's own process as vLLM finds it: its environment, and that it ends with the worker that started it."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

PARENT = "VERL_MAS_ENGINE_PARENT"
_PR_SET_PDEATHSIG = 1
# A rank's place in its worker group means nothing to the engine, which is whole in itself.
_NOT_INHERITED = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def engine_environment(device: str, num_threads: int) -> dict[str, str]:
    """What a vLLM engine needs in its environment; what the user has set stays, apart from what the engine is built upon."""
    needed = {
        PARENT: str(os.getpid()),
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",  # a fork of a process with Ray or gRPC threads hangs
        "VLLM_USE_V2_MODEL_RUNNER": "0",  # patches/vllm_full_log_probs.py is for the sampler of V1
        "VLLM_HOST_IP": "127.0.0.1",
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


def end_with_parent() -> None:
    """Have the kernel kill this process when its parent dies, if the parent started it as an engine; elsewhere do nothing."""
    if os.environ.get(PARENT) != str(os.getppid()):
        return
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.environ[PARENT] != str(os.getppid()):  # it died before the call
        os._exit(1)
