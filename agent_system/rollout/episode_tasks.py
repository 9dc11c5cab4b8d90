"""The asyncio tasks in which an episode's calls run: none outlives the episode."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, TypeVar

from agent_system.rollout.forks import CLOSE_TIMEOUT_S

logger = logging.getLogger(__name__)
T = TypeVar("T")


class EpisodeTasks:
    """Tasks of one episode, including those that the orchestra created for its calls."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any] | None] = set()

    def enter(self) -> None:
        """Register the running task, which makes a call."""
        self._tasks.add(asyncio.current_task())

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run `work` as a task of the episode."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        return task

    async def cancel_others(self, episode: str) -> None:
        """Cancel all tasks but the running one and wait for them; abandon with a warning those that
        ignore the cancellation.
        """
        me = asyncio.current_task()
        # Repeated, since a task that is cancelled may start others.
        while others := [
            task for task in self._tasks if task is not None and task is not me and not task.done()
        ]:
            for task in others:
                task.cancel()
            _, pending = await asyncio.wait(others, timeout=CLOSE_TIMEOUT_S)
            if pending:
                logger.warning(
                    "%d calls of episode %s did not end when they were cancelled; abandoned",
                    len(pending),
                    episode,
                )
                return
