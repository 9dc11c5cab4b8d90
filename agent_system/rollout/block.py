"""Calls of one turn that act on the same state: nobody goes on before all have been tried and the choices are committed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from agent_system.rollout.candidate import Tried
from agent_system.turn import Turn


class Block:
    """Calls in the order in which they entered; the order in which they are answered changes nothing.

    Attributes:
        turn: theirs.
        failure: why the choices could not be committed, or None.
    """

    def __init__(self, turn: Turn, start: Callable[[Block], asyncio.Task[None]]) -> None:
        """Open the block.

        Args:
            turn: of its calls.
            start: called once, when the last call has been tried, has failed or was cancelled: begins to commit what `take` returns.
        """
        self.turn = turn
        self.failure: BaseException | None = None
        self._start = start
        self._commit: asyncio.Task[None] | None = None
        self._entered = 0
        self._running = 0
        self._tried: dict[int, Tried] = {}
        self._taken = False
        self._waiting: dict[int, asyncio.Future[None]] = {}
        self._over = asyncio.Event()

    @property
    def settled(self) -> bool:
        """None of its calls runs any more, and no call may enter."""
        return self._commit is not None

    def enter(self) -> int:
        """Return the place of one more call."""
        self._running += 1
        self._entered += 1
        return self._entered - 1

    def leave(self) -> None:
        """A call was cancelled, or is through."""
        self._running -= 1
        if self._running == 0:
            self._commit = self._start(self)
            self._commit.add_done_callback(self._end)

    async def settle(self, place: int, tried: Tried | None) -> None:
        """A call is through (None: it failed): wait until the choices of all are committed; calls go on in the order of their places.

        A call that is cancelled before its choice has been taken is left out. Raises what made the commitment of its choice fail.
        """
        if tried is not None:
            self._tried[place] = tried
        self._waiting[place] = asyncio.get_running_loop().create_future()
        self.leave()
        try:
            await self._waiting[place]
        except asyncio.CancelledError:
            if not self._taken:
                self._tried.pop(place, None)
            raise
        if tried is not None and self.failure is not None:
            raise self.failure

    def take(self) -> list[Tried]:
        """Return the calls that did not fail, in call order, to be committed."""
        self._taken = True
        return [self._tried[place] for place in sorted(self._tried)]

    async def over(self) -> None:
        """Wait until the choices are committed."""
        await self._over.wait()

    def _end(self, commit: asyncio.Task[None]) -> None:
        self.failure = asyncio.CancelledError() if commit.cancelled() else commit.exception()
        self._over.set()
        for place in sorted(self._waiting):
            if not self._waiting[place].done():
                self._waiting[place].set_result(None)
