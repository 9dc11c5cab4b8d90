"""What tools hold for the length of an episode, such as a connection of its own."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Hashable
from contextvars import ContextVar
from typing import Any, Protocol, TypeVar

logger = logging.getLogger(__name__)

CLOSE_TIMEOUT_S = 10.0
_current: ContextVar[EpisodeResources] = ContextVar("episode_resources")


class Closable(Protocol):
    """Something that an episode holds."""

    async def close(self) -> None:
        """Release it."""


T = TypeVar("T", bound=Closable)


class EpisodeResources:
    """Held by the tasks that an episode starts, and released at its end."""

    def __init__(self) -> None:
        self._values: dict[Hashable, Any] = {}

    def enter(self) -> None:
        """Make these the resources of the running task, and of the tasks that it starts."""
        _current.set(self)

    def get(self, name: Hashable, make: Callable[[], T]) -> T:
        """Return what the episode holds under a name; make it the first time."""
        if name not in self._values:
            self._values[name] = make()
        resource: T = self._values[name]
        return resource

    async def close(self) -> None:
        """Release everything; abandon with a warning what does not end."""
        resources = list(self._values.values())
        self._values = {}
        tasks = [asyncio.ensure_future(one.close()) for one in resources]
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=CLOSE_TIMEOUT_S)
            if late:
                logger.warning(
                    "%d resources of an episode did not end within %g s; abandoned",
                    len(late),
                    CLOSE_TIMEOUT_S,
                )


def of_episode() -> EpisodeResources | None:
    """Return the resources of the episode that the running task belongs to; None outside of
    episodes.
    """
    return _current.get(None)
