"""Unfinished calls of Ray actors: waits with a timeout, errors that name the worker and the method."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
from typing import Any

import ray
from ray.exceptions import ActorUnavailableError, ObjectLostError, RayActorError, RayTaskError

from verl.single_controller.worker_group import ArgumentLostError, PendingResults, WorkerDiedError
from verl.utils.host_memory import note_of_kills
from verl.utils.names import error_line

# How long to wait, after an error of one rank, for the death of another: if a rank dies in a
# collective, the lost connections of its peers are often reported first.
DEATH_NOTICE_S = 10.0


def failures(
    futures: Sequence[asyncio.Future[Any]], finished_futures: set[asyncio.Future[Any]]
) -> dict[int, Any]:
    """Return the exceptions of the futures in `finished_futures`, by position in `futures`."""
    return {
        i: future.exception()
        for i, future in enumerate(futures)
        if future in finished_futures and future.exception() is not None
    }


def deaths(errors: dict[int, Any]) -> list[int]:
    """Return the ranks whose error is the death of the worker."""
    return [rank for rank, error in errors.items() if is_death(error)]


def is_death(error: Any) -> bool:
    """Return whether a worker, or its node with its result, is lost; not true of a lost argument
    (`ArgumentLostError`).
    """
    return isinstance(error, RayActorError | ObjectLostError) and not isinstance(error, RayTaskError)


class RayPendingResults(PendingResults):
    """A list of object references, one per call. `ray.get` works on it; `get` raises more
    informative errors.
    """

    def __init__(
        self, refs: Iterable[Any], workers: Sequence[str], method_name: str, timeout_s: float
    ) -> None:
        super().__init__(refs)
        self.workers = list(workers)
        self.method_name = method_name
        self.timeout_s = timeout_s

    def __reduce__(self) -> tuple[Any, ...]:
        return RayPendingResults, (list(self), self.workers, self.method_name, self.timeout_s)

    def subset(self, ranks: Sequence[int]) -> RayPendingResults:
        """Return the calls at these positions."""
        return RayPendingResults(
            [self[i] for i in ranks], [self.workers[i] for i in ranks], self.method_name, self.timeout_s
        )

    def get(self, timeout: float | None = None) -> list[Any]:
        """Wait for all calls; the first failure ends the wait, so that peers stuck in a collective
        do not delay it.

        Raises TimeoutError, WorkerDiedError (ArgumentLostError if the worker that held an argument
        has died), or the worker's error.
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
                except RayTaskError as error:
                    self._raise_death_of_a_peer(waiting, rank_of)
                    # Ray's error of a task is also of the class of its cause.
                    if isinstance(error, ObjectLostError):
                        raise self._lost_argument(rank_of[ref], error) from error
                    raise
                except (RayActorError, ObjectLostError) as error:
                    raise self._died(rank_of[ref], error) from error
        return results

    def _raise_death_of_a_peer(self, refs: list[Any], rank_of: dict[Any, int]) -> None:
        deadline = time.monotonic() + DEATH_NOTICE_S
        while refs:
            ready, refs = ray.wait(refs, num_returns=1, timeout=max(0.0, deadline - time.monotonic()))
            if not ready:
                return
            try:
                ray.get(ready)
            # A peer of a worker that died fails as well; the worker's own death is the cause.
            except RayTaskError:
                continue
            except (RayActorError, ObjectLostError) as error:
                raise self._died(rank_of[ready[0]], error) from error

    async def wait(self) -> list[Any]:
        """Await the results that `get` returns."""
        futures = [asyncio.wrap_future(ref.future()) for ref in self]
        finished_futures, pending = await asyncio.wait(
            futures, timeout=self.timeout_s, return_when=asyncio.FIRST_EXCEPTION
        )
        errors = failures(futures, finished_futures)
        deadline = time.monotonic() + DEATH_NOTICE_S
        while errors and pending and not deaths(errors) and time.monotonic() < deadline:
            late, pending = await asyncio.wait(
                pending, timeout=deadline - time.monotonic(), return_when=asyncio.FIRST_EXCEPTION
            )
            errors |= failures(futures, late)
        if errors:
            for other in pending:
                other.cancel()
            for rank in deaths(errors):
                raise self._died(rank, errors[rank]) from errors[rank]
            rank, error = next(iter(errors.items()))
            if isinstance(error, ObjectLostError):
                raise self._lost_argument(rank, error) from error
            raise error
        if pending:
            for other in pending:
                other.cancel()
            raise self._timed_out(
                self.timeout_s, [i for i, future in enumerate(futures) if future in pending]
            )
        return [future.result() for future in futures]

    def _timed_out(self, limit: float, ranks: list[int]) -> TimeoutError:
        names = ", ".join(self.workers[i] for i in ranks)
        return TimeoutError(
            f"waited {limit:g} s for {self.method_name} on {names} ({len(ranks)} of {len(self)} "
            "calls unfinished)"
        )

    def _lost_argument(self, rank: int, error: Exception) -> ArgumentLostError:
        last = error_line(error, last=True)
        return ArgumentLostError(
            f"an argument of {self.method_name} for worker {self.workers[rank]} is lost, because "
            f"the worker that held it died: {last}"
        )

    def _died(self, rank: int, error: Exception) -> WorkerDiedError:
        verb = "cannot be reached" if isinstance(error, ActorUnavailableError) else "died"
        # Ray describes the actor in lines of their own
        why = " ".join(str(error).split())
        return WorkerDiedError(
            f"worker {self.workers[rank]} {verb} while it ran {self.method_name}: {why}{note_of_kills()}"
        )
