"""Calls of one turn that act on the same state: none continues before all candidates are scored and the
choices are committed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from agent_system.rollout.candidate import CandidateSet
from agent_system.turn import Turn


class SimultaneousCalls:
    """Calls of one turn, in the order in which they entered; the order of their answers has no effect.

    Attributes:
        turn: the turn of the calls.
        failure: why the choices could not be committed, or None.
    """

    def __init__(self, turn: Turn, start: Callable[[SimultaneousCalls], asyncio.Task[None]]) -> None:
        """Start with no calls.

        Args:
            turn: the turn of the calls.
            start: called once, when every call has its candidates, has failed or was cancelled; starts the
                commit of what `take` returns.
        """
        self.turn = turn
        self.failure: BaseException | None = None
        self._start = start
        self._commit: asyncio.Task[None] | None = None
        self._entered = 0
        self._running = 0
        self._candidate_sets: dict[int, CandidateSet] = {}
        self._taken = False
        self._waiting: dict[int, asyncio.Future[None]] = {}
        self._over = asyncio.Event()

    @property
    def settled(self) -> bool:
        """Whether no call is running and none may enter any more."""
        return self._commit is not None

    def enter(self) -> int:
        """Add a call and return its place."""
        self._running += 1
        self._entered += 1
        return self._entered - 1

    def leave(self) -> None:
        """Remove a call that was cancelled or has finished."""
        self._running -= 1
        if self._running == 0:
            self._commit = self._start(self)
            self._commit.add_done_callback(self._end)

    async def settle(self, place: int, candidate_set: CandidateSet | None) -> None:
        """Register the candidates of a finished call (None: it failed) and wait until all choices are
        committed.

        Calls continue in the order of their places. A call that is cancelled before `take` is left out.

        Raises:
            BaseException: the error of a failed commit.
        """
        if candidate_set is not None:
            self._candidate_sets[place] = candidate_set
        self._waiting[place] = asyncio.get_running_loop().create_future()
        self.leave()
        try:
            await self._waiting[place]
        except asyncio.CancelledError:
            if not self._taken:
                self._candidate_sets.pop(place, None)
            raise
        if candidate_set is not None and self.failure is not None:
            raise self.failure

    def take(self) -> list[CandidateSet]:
        """Return the candidates of the calls that did not fail, in call order, to be committed."""
        self._taken = True
        return [self._candidate_sets[place] for place in sorted(self._candidate_sets)]

    async def over(self) -> None:
        """Wait until the choices are committed."""
        await self._over.wait()

    def _end(self, commit: asyncio.Task[None]) -> None:
        self.failure = asyncio.CancelledError() if commit.cancelled() else commit.exception()
        self._over.set()
        for place in sorted(self._waiting):
            if not self._waiting[place].done():
                self._waiting[place].set_result(None)
