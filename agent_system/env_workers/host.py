"""The worker's side: environments by number, each called through the `EnvCaller` that plays in the
driver without workers.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

from agent_system.env_caller import EnvCaller
from agent_system.env_workers.messages import EnvSource, WorkerFailure, WorkerRequest, pickled, unpickled
from agent_system.environment import Observation, Outcome, Task
from agent_system.options import build_options
from agent_system.registry import EnvRegistry, load_plugins
from agent_system.sandbox import configure, shared_failures
from agent_system.threads import DaemonExecutor

# The least default limit of a worker: imports of numpy and torch alone take about 0.5 GiB.
LEAST_BYTES = 2**31
CGROUP_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
MEMORY_CHECK_S = 0.2
# A worker above its limit whose event loop does not answer in this time ends itself.
LEAVE_S = 5.0
# Python's 5 ms cost steps that compute a third of their time on a machine whose cores are all busy:
# every waiting thread wakes at each interval, and the one that gets the lock of the interpreter
# waits for a core.
SWITCH_INTERVAL_S = 0.05


class EnvHost:
    """All environments of one worker."""

    def __init__(self, source: EnvSource) -> None:
        """Import the plug-ins, look the environment up and start the sandbox if it uses one. Raise
        AgentSystemError as the driver does.
        """
        load_plugins(source.plugins)
        self._cls = EnvRegistry.get(source.name)
        self._config = build_options(self._cls.config_class, source.params, "env.params")
        if self._cls(self._config).uses_sandbox:
            configure(source.sandbox)
        default = source.memory_bytes is None
        self._memory_bytes = (
            max(LEAST_BYTES, node_memory() // (2 * source.workers)) if default else source.memory_bytes
        )
        self._limit = f"env.workers.memory_gib={(self._memory_bytes or 0) / 2**30:g}{', the default here' if default else ''}"
        self._threads = DaemonExecutor(source.threads)
        self._envs: dict[int, EnvCaller] = {}
        self._running: dict[int, asyncio.Task[Any]] = {}

    async def answer(self, number: int, payload: bytes) -> bytes:
        """Run a pickled `WorkerRequest` and return its pickled result, or a pickled
        `WorkerFailure`.
        """
        task = asyncio.current_task()
        assert task is not None
        self._running[number] = task
        try:
            request: WorkerRequest = unpickled(payload, f"the arguments of a call of {self._cls.__name__}")
            result = await getattr(self, request.operation)(request.handle, *request.args)
            return pickled(result, f"the value that {self._cls.__name__}.{_called(request)}() returned")
        except BaseException as error:
            # whatever a user's environment raises fails its episode alone
            return pickled(WorkerFailure.of(error), "a failure")
        finally:
            del self._running[number]

    async def reset(self, handle: int, seed: int, task: Task) -> Observation:
        """Make an environment and start `task` in it."""
        env = self._envs[handle] = EnvCaller(self._cls(self._config, seed=seed), self._threads)
        return await env.observation("reset", task)

    async def outcome(self, handle: int, method: str, *args: Any) -> Outcome:
        """Call a method that returns an `Outcome`."""
        return await self._envs[handle].outcome(method, *args)

    async def observation(self, handle: int, method: str, *args: Any) -> Observation:
        """Call a method that returns an `Observation`."""
        return await self._envs[handle].observation(method, *args)

    async def render(self, handle: int) -> Any:
        """Return the state for readers, unchecked."""
        return await self._envs[handle].render()

    async def fork(self, handle: int, copy: int) -> None:
        """Fork an environment; the copy gets the number `copy`."""
        self._envs[copy] = await self._envs[handle].fork()

    async def close(self, handle: int, limit: float) -> None:
        """Close an environment and forget it; nothing to do if it could not be made."""
        env = self._envs.pop(handle, None)
        if env is not None:
            await env.close(limit)

    async def cancel(self, handle: int, number: int) -> None:
        """Cancel a running request."""
        if (task := self._running.get(number)) is not None:
            task.cancel()

    async def sandbox_failures(self, handle: int) -> float | None:
        """Return `shared_failures` of this process."""
        return shared_failures()

    async def outgrown(self, handle: int) -> str:
        """Wait until this process is above its memory limit, and return what was found.

        Without a limit the request stays open as well: the driver learns from it that an idle
        worker has died.
        """
        loop = asyncio.get_running_loop()
        over_limit = asyncio.Event()
        sizes: list[int] = []
        # In a thread, since a method of the environment may block the event loop.
        if self._memory_bytes:
            threading.Thread(
                target=_watch, args=(self._memory_bytes, sizes, loop, over_limit), daemon=True
            ).start()
        await over_limit.wait()
        return f"it used {sizes[0] / 2**30:.2f} GiB, more than {self._limit}"


def _called(request: WorkerRequest) -> str:
    """Return the environment's method behind a request."""
    return str(request.args[0]) if request.operation in ("outcome", "observation") else request.operation


def node_memory() -> int:
    """Return the memory of this machine, or of its container if that has less, in bytes."""
    container_limits = [path.read_text().strip() for path in CGROUP_LIMITS if path.is_file()]
    return min(
        [
            os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
            # A limit may also be the word `max`.
            *(int(limit) for limit in container_limits if limit.isdigit()),
        ]
    )


def _watch(limit: int, sizes: list[int], loop: asyncio.AbstractEventLoop, over_limit: asyncio.Event) -> None:
    """Wait in a thread until the resident memory is above `limit` bytes; report it, and end the
    process if it still lives later.
    """
    page = os.sysconf("SC_PAGE_SIZE")
    while (size := int(Path("/proc/self/statm").read_text().split()[1]) * page) <= limit:
        time.sleep(MEMORY_CHECK_S)
    sizes.append(size)
    loop.call_soon_threadsafe(over_limit.set)
    time.sleep(LEAVE_S)
    os._exit(1)


def start_host(payload: bytes) -> tuple[EnvHost | None, bytes]:
    """Return the host of a pickled `EnvSource` and the answer to the driver: a pickled None, or a
    failure without a host.

    Threads of this process switch every `SWITCH_INTERVAL_S` from then on.
    """
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    try:
        return EnvHost(unpickled(payload, "the settings of the worker")), pickled(None, "nothing")
    except BaseException as error:
        # an import or a sandbox may fail in any way
        return None, pickled(WorkerFailure.of(error), "a failure")
