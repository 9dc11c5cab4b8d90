"""Plays episodes one by one, with the limits that hold for all of them: threads, concurrency, and
the share that may fail.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from agent_system.env_workers.messages import EnvWorkerError, innermost_line
from agent_system.record import EpisodeRecord
from agent_system.rollout.call import EpisodeSpec
from agent_system.rollout.clock import EpisodeClock
from agent_system.rollout.episode import Episode
from verl.protocol.generate import EngineGoneError
from verl.utils.names import listed

logger = logging.getLogger(__name__)

END_TIMEOUT_S = 10.0
# Time for the tasks, resources and environments of an episode to close, which have limits of their
# own.
CLOSING_S = 120.0
SCORING = "the reward functions"


class TooManyFailuresError(RuntimeError):
    """More episodes, or candidates of trees, failed than `rollout.max_failure_rate` allows."""


class Failure(NamedTuple):
    """Why an episode of a group, or a candidate of its tree, failed."""

    uid: str
    cause: str


@dataclass(eq=False)
class EpisodePlayer:
    """Plays episodes, at most `slots` at a time.

    Attributes:
        start: makes an episode.
        score: calls the reward functions on the record of a finished episode; the clock stands
            still while a reward model is awaited.
        slots: as `rollout.max_concurrent_episodes`.
        limit_s: `rollout.episode_timeout_s`.
        score_s: `reward.timeout_s`.
        rate: `rollout.max_failure_rate`.
        window: number of the last episodes to which `rate` applies.
    """

    start: Callable[[EpisodeSpec], Episode]
    score: Callable[[EpisodeRecord, EpisodeSpec, EpisodeClock], Awaitable[EpisodeRecord]]
    slots: asyncio.Semaphore
    limit_s: float
    score_s: float
    rate: float
    window: int
    _open: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    # the last `window` episodes
    _ended: deque[Failure | None] = field(default_factory=deque, init=False)
    _failed: int = field(default=0, init=False)  # of these
    _left_out: list[Failure] = field(default_factory=list, init=False)  # candidates
    _playing: set[Episode] = field(default_factory=set, init=False)

    def __post_init__(self) -> None:
        self._open.set()

    @property
    def end_s(self) -> float:
        """Seconds after which an episode that has begun has ended, or is abandoned, without the
        time that `limit_s` leaves out.
        """
        return self.limit_s + self.score_s + CLOSING_S + 2 * END_TIMEOUT_S

    @property
    def playing(self) -> int:
        """Number of episodes in progress."""
        return len(self._playing)

    @property
    def in_time(self) -> bool:
        """Whether an episode in progress has time left."""
        return any(episode.clock.left_s > 0 for episode in self._playing)

    def set_open(self, to_more: bool) -> None:
        """Begin episodes (`to_more`), or let them wait; those in progress go on."""
        (self._open.set if to_more else self._open.clear)()

    async def play(self, specs: Sequence[EpisodeSpec]) -> list[EpisodeRecord]:
        """Play episodes concurrently and return their records, failed ones included, in the order
        of `specs`.

        An episode whose environment worker died is played once more, with the same seeds.

        Raises:
            EngineGoneError: an engine's process died.
            TooManyFailuresError: more than `rate` of `window` episodes failed; the message groups
                the causes and names groups.
        """
        tasks = [asyncio.create_task(self._play(spec)) for spec in specs]
        try:
            # As they end: the first error is not kept waiting for earlier episodes.
            for ended in asyncio.as_completed(tasks):
                await ended
            return [task.result() for task in tasks]
        finally:
            await _cancel(tasks)

    def check_left_out(self, records: Sequence[EpisodeRecord]) -> None:
        """Raise TooManyFailuresError if more than `rate` of the candidates of these episodes, the
        last ones, failed.
        """
        failures = self._left_out
        self._left_out = []
        left_out = sum(r.left_out for r in records if not r.failed)
        candidate_count = left_out + sum(len(r.samples) for r in records if not r.failed)
        if left_out > self.rate * candidate_count:
            raise TooManyFailuresError(_grouped(failures, left_out, candidate_count, "candidates", self.rate))

    async def _play(self, spec: EpisodeSpec) -> EpisodeRecord:
        async with self.slots:
            await self._open.wait()
            episode, task = await self._run(spec)
            # with the same seeds it is the same episode
            if isinstance(_error(task), EnvWorkerError):
                await self._open.wait()
                episode, task = await self._run(spec)
        # no other episode would get a reply either
        if isinstance(error := _error(task), EngineGoneError):
            raise error
        cause = _cause(episode, task)
        if cause is not None:
            logger.warning("episode %s left out: %s", spec.traj_uid, cause)
            self._count(Failure(spec.uid, cause))
            return episode.record(cause)
        self._count(None)
        self._left_out += [Failure(spec.uid, why) for why in episode.left_out.elements()]
        return task.result()

    async def _run(self, spec: EpisodeSpec) -> tuple[Episode, asyncio.Task[EpisodeRecord]]:
        """Play an episode in a task of its own, which it may cancel itself, and return both.

        An episode whose code ignores the end of its time is abandoned: its task may go on, but its
        calls get no reply.
        """
        episode = self.start(spec)
        task = asyncio.create_task(self._scored(episode), name=spec.traj_uid)
        self._playing.add(episode)
        try:
            late = {task}
            # Repeated, since the clock of an episode may have stood still meanwhile.
            while late and (left := episode.clock.left_s + END_TIMEOUT_S) > 0:
                _, late = await asyncio.wait(late, timeout=left)
            if late:
                # after the end of play it has the time of the reward functions
                if episode.over:
                    _, late = await asyncio.wait(late, timeout=self.score_s + CLOSING_S)
                episode.over = True
                episode.abandoned = bool(late)
            # or asyncio logs the error with which an abandoned one ends
            task.add_done_callback(_error)
        finally:
            self._playing.discard(episode)
            await _cancel([task])
        return episode, task

    async def _scored(self, episode: Episode) -> EpisodeRecord:
        """Play an episode and call the reward functions; an error of these costs the episode as any
        other.
        """
        try:
            await episode.run()
            episode.waiting_for = SCORING
            return await self.score(episode.record(), episode.spec, episode.clock)
        except (KeyboardInterrupt, SystemExit) as error:
            # of a user's code; it would end the event loop
            raise RuntimeError(f"{type(error).__name__}: {error}") from error

    def _count(self, failure: Failure | None) -> None:
        self._ended.append(failure)
        self._failed += failure is not None
        if len(self._ended) > self.window:
            self._failed -= self._ended.popleft() is not None
        if failure is not None and self._failed > self.rate * self.window:
            failures = [ended for ended in self._ended if ended is not None]
            raise TooManyFailuresError(_grouped(failures, self._failed, self.window, "episodes", self.rate))


def _error(task: asyncio.Task[EpisodeRecord]) -> BaseException | None:
    """Return the error with which an episode's task ended; none of one that was abandoned and goes
    on, or cancelled.
    """
    return task.exception() if task.done() and not task.cancelled() else None


def _cause(episode: Episode, task: asyncio.Task[EpisodeRecord]) -> str | None:
    """Return why an episode failed, with the innermost line of code, or None."""
    if episode.abandoned:
        limit = "reward.timeout_s" if episode.waiting_for == SCORING else "rollout.episode_timeout_s"
        return (
            f"TimeoutError: episode ignored its cancellation after {limit}, waiting for {episode.waiting_for}"
        )
    if task.cancelled():
        return "CancelledError: the episode cancelled itself"
    error = _error(task)
    if error is None:
        return None
    line = innermost_line(error)
    return f"{type(error).__name__}: {error}{f' ({line})' if line else ''}"


def _grouped(failures: Sequence[Failure], failed: int, total: int, of: str, allowed: float) -> str:
    uids: dict[str, list[str]] = {}
    for failure in failures:
        uids.setdefault(failure.cause, []).append(failure.uid)
    most = sorted(uids.items(), key=lambda item: -len(item[1]))[:10]
    lines = [f"  {len(episode_uids)} x {cause}, in {listed(episode_uids)}" for cause, episode_uids in most]
    return (
        f"{failed} of {total} {of} failed so far, more than rollout.max_failure_rate={allowed:g} "
        "allows:\n" + "\n".join(lines)
    )


async def _cancel(tasks: Sequence[asyncio.Task[EpisodeRecord]]) -> None:
    """Cancel tasks that have not ended, so that none outlives its caller; asyncio logs no errors of
    tasks that nobody awaits.
    """
    left = [task for task in tasks if not task.done()]
    for task in left:
        task.cancel()
    if left:
        await asyncio.wait(left, timeout=END_TIMEOUT_S)
    for task in tasks:
        if task.done() and not task.cancelled():
            task.exception()
