"""The time limits of an episode and of its calls."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager

from agent_system.record import CallTimes

REPLY_S = 1.0


class EpisodeClock:
    """As `asyncio.timeout`, but it stands still while engines generate: a busy engine is slow, and
    a stuck one ends the call.

    The first `REPLY_S` seconds of a reply count, so that an endless loop of calls ends too.

    Args:
        limit_s: `rollout.episode_timeout_s`; infinite for calls outside an episode.
        call_s: `rollout.call_timeout_s`, the limit of a call of the episode.

    Attributes:
        started: when the episode began, in seconds since the epoch; 0 before.
        times: of its calls, by turn and number; None: they are not kept.
    """

    def __init__(self, limit_s: float, call_s: float) -> None:
        self.limit_s = limit_s
        self.call_s = call_s
        # seconds left at the time `_since`
        self._left, self._since = limit_s, 0.0
        self._waiting = 0
        self._timeout = asyncio.timeout(None)
        self._open = False
        self.started = 0.0
        self.times: dict[tuple[int, int], CallTimes] | None = None

    @property
    def seconds(self) -> float:
        """Seconds since the episode began."""
        return time.time() - self.started

    def note(self, call: tuple[int, int], began: float, waited: float = 0.0) -> None:
        """Note that the reply to a call has arrived, if times are kept.

        Args:
            call: its turn and number; the first note of a call counts.
            began: `seconds` when it was made.
            waited: seconds in which it waited for a slot.
        """
        if self.times is not None:
            self.times.setdefault(call, CallTimes(began=began, ended=self.seconds, waited=waited))

    @property
    def left_s(self) -> float:
        """Seconds left; below 0 when the limit is exceeded, also after the end of the episode."""
        return self._left - self._counted(time.monotonic())

    @property
    def expired(self) -> bool:
        """Whether the limit ended the episode."""
        return self._timeout.expired()

    async def __aenter__(self) -> None:
        self._since = time.monotonic()
        self.started = time.time()
        self._open = True
        await self._timeout.__aenter__()
        self._schedule()

    async def __aexit__(self, *error: object) -> None:
        self._open = False
        await self._timeout.__aexit__(*error)  # type: ignore[arg-type]

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Let the clock stand still while an engine generates a reply; several may at the same
        time.
        """
        self._change(1)
        try:
            yield
        finally:
            self._change(-1)

    def _counted(self, now: float) -> float:
        """Return how much of the time since `_since` counts."""
        return min(now - self._since, REPLY_S if self._waiting else math.inf) if self._since else 0.0

    def _change(self, waiting: int) -> None:
        now = time.monotonic()
        if waiting < 0 or not self._waiting:
            self._left = self._left - self._counted(now)
            self._since = now
        self._waiting += waiting
        self._schedule()

    def _schedule(self) -> None:
        if self._open and not self.expired:
            stands = self._waiting and self._left > REPLY_S
            self._timeout.reschedule(None if stands else asyncio.get_running_loop().time() + self.left_s)
