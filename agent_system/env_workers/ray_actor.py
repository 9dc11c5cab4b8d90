"""A worker as a Ray actor, on any node of the cluster."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import Any

import ray
from ray.exceptions import RayError

from agent_system.env_workers.host import start_host
from agent_system.env_workers.messages import WorkerGoneError
from agent_system.sandbox import close_shared

# Ray's default of 1,000 concurrent calls of an actor is less than the episodes of one worker.
CONCURRENT_CALLS = 100_000
EXIT_S = 5.0


class EnvActor:
    """The actor: one `EnvHost` in the actor's event loop."""

    def __init__(self, source: bytes) -> None:
        """Build the host from a pickled `EnvSource`: Ray may start calls in another order than they
        were sent, but none before this.
        """
        self._host, self._answer = start_host(source)

    async def start(self) -> bytes:
        """Return a pickled None, or the `WorkerFailure` of building the host."""
        return self._answer

    async def answer(self, number: int, payload: bytes) -> bytes:
        """Answer a request; without a host, with the failure of building it."""
        return self._answer if self._host is None else await self._host.answer(number, payload)

    async def leave(self) -> None:
        """Stop what the environments share."""
        close_shared()


class RayWorker:
    """The driver's end of an actor."""

    def __init__(self, source: bytes, cpus: float, environment: Mapping[str, str]) -> None:
        """Start the actor on the node that Ray spreads it to.

        Args:
            source: the pickled `EnvSource`.
            cpus: CPUs that Ray reserves.
            environment: variables of the actor's process.
        """
        actor: Any = ray.remote(EnvActor)
        self._actor: Any = actor.options(
            num_cpus=cpus,
            scheduling_strategy="SPREAD",
            max_concurrency=CONCURRENT_CALLS,
            runtime_env={"env_vars": dict(environment)},
        ).remote(source)
        self.started = _future(self._actor.start.remote())

    def send(self, number: int, payload: bytes) -> Future[bytes]:
        """Send a request."""
        return _future(self._actor.answer.remote(number, payload))

    def kill(self) -> None:
        """Kill the actor, in a thread: callbacks of Ray's futures call this, and Ray blocks when it
        is called from there.
        """
        threading.Thread(target=ray.kill, args=(self._actor,), daemon=True).start()

    def close(self) -> None:
        """Let the actor stop its sandbox."""
        self._left = self._actor.leave.remote()

    def wait(self) -> None:
        """Wait for that, and kill the actor."""
        with suppress(RayError):
            ray.get(self._left, timeout=EXIT_S)
        ray.kill(self._actor)


def _future(answer: ray.ObjectRef) -> Future[bytes]:
    """Return a future of an answer; an error of Ray is a WorkerGoneError."""
    future: Future[bytes] = Future()

    def finish(actor_future: Future[bytes]) -> None:
        with suppress(InvalidStateError):  # cancelled
            error = actor_future.exception()
            if error is None:
                future.set_result(actor_future.result())
            else:
                future.set_exception(
                    WorkerGoneError(f"its Ray actor died ({' '.join(str(error).split())[:300]})")
                )

    answer.future().add_done_callback(finish)
    return future
