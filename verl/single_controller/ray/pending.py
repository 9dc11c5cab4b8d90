"""Unfinished calls of Ray actors: waits with a limit, errors that name the worker and the method."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
from typing import Any

import ray
from ray.exceptions import ActorUnavailableError, RayActorError

from verl.protocol.future import PendingResults
from verl.single_controller.base.worker_group import WorkerDiedError


class RayPendingResults(PendingResults):
    """A list of object references, one a worker. `ray.get` works on it; `get` gives the better errors."""

    def __init__(self, refs: Iterable[Any], workers: Sequence[str], method_name: str, timeout_s: float) -> None:
        super().__init__(refs)
        self.workers = list(workers)
        self.method_name = method_name
        self.timeout_s = timeout_s

    def __reduce__(self) -> tuple[Any, ...]:
        return RayPendingResults, (list(self), self.workers, self.method_name, self.timeout_s)

    def subset(self, ranks: Sequence[int]) -> RayPendingResults:
        """Return the calls at these positions."""
        return RayPendingResults([self[i] for i in ranks], [self.workers[i] for i in ranks], self.method_name, self.timeout_s)

    def get(self, timeout: float | None = None) -> list[Any]:
        """Wait for all calls; the first that fails ends the wait, so that peers stuck in a collective do not hold it up.

        Raises TimeoutError, WorkerDiedError, or what the worker raised.
        """
        limit = self.timeout_s if timeout is None else timeout
        deadline = time.monotonic() + limit
        rank_of = {ref: i for i, ref in enumerate(self)}
        results: list[Any] = [None] * len(self)
        waiting = list(self)
        while waiting:
            ready, waiting = ray.wait(waiting, num_returns=1, timeout=max(0.0, deadline - time.monotonic()))
            if not ready:
                raise self._timed_out(limit, [rank_of[ref] for ref in waiting])
            for ref in ready:
                try:
                    results[rank_of[ref]] = ray.get(ref, timeout=limit)
                except RayActorError as error:
                    raise self._died(rank_of[ref], error) from error
        return results

    async def wait(self) -> list[Any]:
        """As `get`, on an event loop."""
        futures = [asyncio.wrap_future(ref.future()) for ref in self]
        done, pending = await asyncio.wait(futures, timeout=self.timeout_s, return_when=asyncio.FIRST_EXCEPTION)
        for i, future in enumerate(futures):
            if future in done and future.exception() is not None:
                for other in pending:
                    other.cancel()
                error = future.exception()
                if isinstance(error, RayActorError):
                    raise self._died(i, error) from error
                raise error  # type: ignore[misc]
        if pending:
            for other in pending:
                other.cancel()
            raise self._timed_out(self.timeout_s, [i for i, future in enumerate(futures) if future in pending])
        return [future.result() for future in futures]

    def _timed_out(self, limit: float, ranks: list[int]) -> TimeoutError:
        names = ", ".join(self.workers[i] for i in ranks)
        return TimeoutError(f"waited {limit:g} s for {self.method_name} on {names} ({len(ranks)} of {len(self)} calls unfinished)")

    def _died(self, rank: int, error: Exception) -> WorkerDiedError:
        verb = "cannot be reached" if isinstance(error, ActorUnavailableError) else "died"
        return WorkerDiedError(f"worker {self.workers[rank]} {verb} while it ran {self.method_name}: {error}")
