"""The driver's side: workers, replaced when they die, and the environments of episodes in them."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from typing import Any

from agent_system.env_workers.messages import (
    EnvWorkerError,
    Transport,
    WorkerFailure,
    WorkerGoneError,
    WorkerRequest,
    pickled,
    unpickled,
)
from agent_system.environment import BaseEnv, Observation, Outcome, Task

logger = logging.getLogger(__name__)
START_S = 120.0
# Time in addition to the limit of a close, after which a worker that does not answer is replaced.
ANSWER_S = 10.0


class EnvWorker:
    """One worker while it lives.

    Attributes:
        number: its place in the pool, from 0.
        open: environments in it.
        dead: why it is not used any more, or None.
    """

    def __init__(self, number: int, start: Callable[[], Transport]) -> None:
        self.number = number
        self.open = 0
        self.dead: str | None = None
        self._numbers = itertools.count(1)
        self._transport = start()
        self._transport.started.add_done_callback(self._on_start)
        # Open while the worker lives: its loss is how the end of an idle worker is noticed.
        outgrown = self._transport.send(
            next(self._numbers), pickled(WorkerRequest(0, "outgrown"), "a request")
        )
        outgrown.add_done_callback(self._on_outgrown)

    async def ask(self, what: str, handle: int, operation: str, *args: Any) -> Any:
        """Return the answer to a request.

        Args:
            what: the environment's method, for messages, such as `MyEnv.step()`.
            handle: number of the environment.
            operation: method of `EnvHost`.
            args: its arguments.

        Raises:
            EnvWorkerError: the worker is dead, or died meanwhile.
            AgentSystemError: an argument or the result cannot be pickled.
            RemoteError: the environment's exception.
        """
        payload = pickled(WorkerRequest(handle, operation, args), f"an argument of {what}")
        number = next(self._numbers)
        try:
            if self.dead is not None:
                raise WorkerGoneError(self.dead)
            answer = await asyncio.wrap_future(self._transport.send(number, payload))
        except asyncio.CancelledError:
            # The worker would go on with what nobody waits for.
            self._transport.send(
                next(self._numbers), pickled(WorkerRequest(0, "cancel", (number,)), "a request")
            )
            raise
        except WorkerGoneError as error:
            self.retire(str(error))
            raise EnvWorkerError(f"{what} was lost with its environment worker: {self.dead}") from None
        value = unpickled(answer, f"the value that {what} returned")
        if isinstance(value, WorkerFailure):
            raise value.exception()
        return value

    def retire(self, cause: str) -> None:
        """Kill the worker; its requests fail with the first `cause`."""
        if self.dead is None:
            self.dead = cause
            logger.warning("environment worker %d is replaced: %s", self.number, cause)
            self._transport.kill()

    def wait_for_start(self, limit: float) -> None:
        """Wait until the worker can be used. Raise EnvWorkerError when it cannot, or not within
        `limit` seconds.
        """
        started = self._transport.started
        wait([started], limit)
        if not started.done():
            raise EnvWorkerError(
                f"environment worker {self.number} did not start within {limit:g} s; is its "
                "machine overloaded?"
            )
        self._on_start(started)  # the callback may run later
        if self.dead is not None:
            raise EnvWorkerError(f"environment worker {self.number} cannot be used: {self.dead}")

    def close(self) -> None:
        """Let the worker end; `wait` waits for it."""
        self.dead = self.dead or "the run is over"
        self._transport.close()

    def wait(self) -> None:
        """Wait until a closed worker has ended."""
        self._transport.wait()

    def _on_start(self, started: Future[bytes]) -> None:
        if isinstance(cause := _result(started), WorkerFailure):
            self.retire(f"it could not start: {cause.kind}: {cause.message}")
        elif isinstance(cause, WorkerGoneError):
            self.retire(f"it could not start: {cause}")

    def _on_outgrown(self, outgrown: Future[bytes]) -> None:
        cause = _result(outgrown)
        # `_on_start` reports the failure of a start
        if cause and not isinstance(cause, WorkerFailure):
            self.retire(str(cause))


def _result(future: Future[bytes]) -> Any:
    """Return the unpickled result of a finished future, or its exception."""
    error = future.exception()
    return error if error is not None else unpickled(future.result(), "an answer of a worker")


class EnvWorkers:
    """The workers of a run. An episode's environment stays in the worker that had the fewest when
    it began.
    """

    def __init__(self, env: type[BaseEnv], num: int, start: Callable[[], Transport]) -> None:
        """Start `num` workers; `start` starts one and returns its transport.

        Raises EnvWorkerError when one cannot start, or does not in two minutes; none is then left.
        """
        self.env_class = env
        self._start = start
        self._handles = itertools.count(1)
        self._workers: list[EnvWorker] = []
        try:
            for number in range(num):
                self._workers.append(EnvWorker(number, start))
            for worker in self._workers:
                worker.wait_for_start(START_S)
        except BaseException:
            self.close()
            raise

    def env(self, seed: int) -> RemoteEnv:
        """Return an environment that is made in a worker when it is reset."""
        return RemoteEnv(self, seed)

    def next_handle(self) -> int:
        """Return a new number for an environment."""
        return next(self._handles)

    def least_loaded(self) -> EnvWorker:
        """Return the worker with the fewest environments; a dead one has none, and is replaced if
        it is that.
        """
        worker = min(self._workers, key=lambda w: (0, True) if w.dead is not None else (w.open, False))
        if worker.dead is not None:
            worker = self._workers[worker.number] = EnvWorker(worker.number, self._start)
        return worker

    async def sandbox_failures(self) -> Sequence[float]:
        """Return `shared_failures` of every worker that has a sandbox."""
        requests = [
            worker.ask("a count", 0, "sandbox_failures") for worker in self._workers if worker.dead is None
        ]
        # A worker that died meanwhile has no count.
        replies = await asyncio.gather(*requests, return_exceptions=True)
        return [count for count in replies if isinstance(count, float)]

    def close(self) -> None:
        """End all workers."""
        # All at once, since each takes its time to end.
        for worker in self._workers:
            worker.close()
        for worker in self._workers:
            worker.wait()


class RemoteEnv:
    """An environment in a worker, as an `EnvHandle`."""

    has_close = True  # the worker keeps it until then

    def __init__(self, workers: EnvWorkers, seed: int, worker: EnvWorker | None = None) -> None:
        cls = workers.env_class
        self.name = cls.__name__
        self.has_act, self.has_observe, self.has_score, self.has_render = (
            cls.overrides(method) for method in ("act", "observe", "score", "render")
        )
        self._workers = workers
        self._seed = seed
        self._worker = worker
        self._handle = workers.next_handle()

    async def outcome(self, method: str, *args: Any) -> Outcome:
        """Call `method`, which returns an `Outcome`."""
        outcome: Outcome = await self._ask(method, "outcome", method, *args)
        return outcome

    async def observation(self, method: str, *args: Any) -> Observation:
        """Call `method`, which returns an `Observation`; `reset` makes the environment in the least
        loaded worker.
        """
        observation: Observation
        if method == "reset":
            observation = await self._reset(*args)
        else:
            observation = await self._ask(method, "observation", method, *args)
        return observation

    async def render(self) -> Any:
        """Return the state for readers, unchecked."""
        return await self._ask("render", "render")

    async def fork(self) -> RemoteEnv:
        """Return the fork, in the same worker."""
        copy = RemoteEnv(self._workers, self._seed, self._worker)
        await self._ask("fork", "fork", copy._handle)
        if self._worker is not None:
            self._worker.open += 1
        return copy

    async def close(self, limit: float) -> None:
        """Close the environment; a worker that does not answer is replaced. Nothing to do before
        `reset` or in a dead worker.
        """
        worker = self._worker
        self._worker = None
        if worker is None:
            return
        worker.open -= 1
        if worker.dead is not None:
            return
        try:
            async with asyncio.timeout(limit + ANSWER_S) as clock:
                await worker.ask(f"{self.name}.close()", self._handle, "close", limit)
        except TimeoutError:
            # The environment's own TimeoutError.
            if not clock.expired():
                raise
            worker.retire(
                f"it did not answer within {limit + ANSWER_S:g} s; does a method of {self.name} "
                "with blocking=False block?"
            )
        except EnvWorkerError as error:
            logger.warning("%s", error)

    async def _reset(self, task: Task) -> Observation:
        self._worker = self._workers.least_loaded()
        self._worker.open += 1
        observation: Observation = await self._ask("reset", "reset", self._seed, task)
        return observation

    async def _ask(self, method: str, operation: str, *args: Any) -> Any:
        if self._worker is None:
            raise EnvWorkerError(f"{self.name}.{method}() was called before reset() or after close()")
        return await self._worker.ask(f"{self.name}.{method}()", self._handle, operation, *args)
