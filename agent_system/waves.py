"""Branches of a turn that run at the same time, in waves: a branch makes its next call when every
branch has the reply to its last one, or has ended. The calls of a wave begin in the order of the
branches, so their numbers and seeds never depend on which reply comes first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from agent_system.errors import AgentSystemError

T = TypeVar("T")


class Branch:
    """One of several parts of a turn that run at the same time.

    Attributes:
        waves: the branches that it runs with.
        place: its place among them.
        depth: number of spawns around it; a child of the team is at 1.
        limit: largest depth of its children.
        busy: it waits for a call or a spawn of its own.
    """

    __slots__ = ("busy", "depth", "limit", "place", "waves")

    def __init__(self, waves: Waves, place: int, depth: int = 0, limit: int = 0) -> None:
        self.waves = waves
        self.place = place
        self.depth = depth
        self.limit = limit
        self.busy = False

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Mark the branch as busy for the time of a call or a spawn. Raise AgentSystemError if it
        already is: a wave has one place for each branch.
        """
        if self.busy:
            raise AgentSystemError(
                "a child awaits its calls one by one; give calls at the same time to spawn"
            )
        self.busy = True
        try:
            yield
        finally:
            self.busy = False

    async def enter(self) -> None:
        """Wait until every branch waits or has ended; then those that wait go on, in their order."""
        await self.waves.enter(self.place)


class Waves:
    """Branches of a turn: none makes a call before all others can make theirs.

    Attributes:
        numbers: of the generations in the branches, and inside of these.
        hear: called with every further number; None: nobody asks.
    """

    def __init__(self, branches: int = 0, around: Branch | None = None) -> None:
        """Start with `branches` that have made no call, inside of the branch `around`."""
        self._waiting: dict[int, list[asyncio.Future[None]]] = {}
        self._count = branches
        self._running = branches
        self._around = around
        self.numbers: list[int] = []
        self.hear: Callable[[int], None] | None = None

    def count(self, number: int) -> None:
        """Add the number of a generation in a branch."""
        self.numbers.append(number)
        if self.hear is not None:
            self.hear(number)
        if self._around is not None:
            self._around.waves.count(number)

    def join(self) -> int:
        """Add a branch, and return its place."""
        self._count += 1
        self._running += 1
        return self._count - 1

    async def enter(self, place: int) -> None:
        """Wait as `Branch.enter` does."""
        future = asyncio.get_running_loop().create_future()
        self._arrive(place, [future])
        await future

    def leave(self) -> None:
        """End a branch."""
        self._running -= 1
        self._open_if_all_wait()

    def _arrive(self, place: int, futures: list[asyncio.Future[None]]) -> None:
        self._waiting[place] = futures
        self._open_if_all_wait()

    def _open_if_all_wait(self) -> None:
        if not self._waiting or len(self._waiting) < self._running:
            return
        futures = [future for place in sorted(self._waiting) for future in self._waiting[place]]
        self._waiting = {}
        if self._around is not None:
            self._around.waves._arrive(self._around.place, futures)
            return
        # later, so that the branch that came last does not go on before the others
        asyncio.get_running_loop().call_soon(_release, futures)


def _release(futures: Sequence[asyncio.Future[None]]) -> None:
    for future in futures:
        if not future.done():
            future.set_result(None)


async def in_waves(
    works: Sequence[Callable[[Branch], Awaitable[T]]],
    around: Branch | None,
    *,
    depth: int = 0,
    limit: int = 0,
) -> list[T]:
    """Play functions at the same time, each as a branch; return their results in order.

    Args:
        works: the functions.
        around: the branch that has them; None outside of branches.
        depth, limit: of the branches.

    Raises the first error of a function, and leaves the others to the end of the episode.
    """
    waves = Waves(len(works), around)

    async def one(place: int, work: Callable[[Branch], Awaitable[T]]) -> T:
        try:
            return await work(Branch(waves, place, depth, limit))
        finally:
            waves.leave()

    return await asyncio.gather(*(one(place, work) for place, work in enumerate(works)))
