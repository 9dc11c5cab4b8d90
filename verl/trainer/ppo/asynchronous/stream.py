"""`async_training.mode=fully_async`: groups are sampled all the time, and every step trains on
those that are complete.

    event loop of the collector:   dispatch groups while there is room | put complete ones into the queue
    training loop, step s:      take a batch of groups | credit, updates | send the weights of s to the engines

`GroupQueue` decides what is in progress and what a step takes; once a step has begun, its state is
used on the event loop alone.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from verl.trainer.plan.learners import Pace
from verl.trainer.ppo.asynchronous.draws import TaskDraws
from verl.trainer.ppo.asynchronous.group_queue import Group, GroupQueue, GroupState
from verl.trainer.ppo.asynchronous.metrics import BusyTime, count_metrics, with_dropped
from verl.trainer.ppo.asynchronous.saved_groups import FOLDER, STATE
from verl.trainer.ppo.asynchronous.source import AsynchronousSource
from verl.trainer.ppo.collect.dynamic_sampling import keep_signal, signal_rows
from verl.trainer.ppo.collect.protocol import EpisodeGroupPlayer, FinishedEpisode
from verl.trainer.ppo.collect.step_samples import StepSamples, with_baselines
from verl.trainer.ppo.interrupt import StopRequest
from verl.utils.loop_thread import Running
from verl.utils.names import listed
from verl.workers.rollout.restart import RestartingClient

logger = logging.getLogger(__name__)
NO_TASKS = (
    "no more tasks may be drawn for it, and an earlier step trained on those that were; raise "
    "algorithm.filter_groups.max_num_gen_batches, or use tasks of which more have a signal"
)
ALL_ASIDE = "no task can be drawn: all tasks are set aside, see async_training.max_task_failures"


@dataclass(eq=False)
class GroupStream(AsynchronousSource):
    """Samples of `async_training.mode=fully_async`.

    Attributes:
        steps: number of steps of the run.
        paces: of every trained policy.
        engines: of every trained policy, with its adapter; drained before new weights, and none
            with `async_training.partial_rollout`.
    """

    steps: int
    paces: Mapping[str, Pace]
    engines: Mapping[str, tuple[RestartingClient, str | None]]
    _tasks: set[asyncio.Task[None]] = field(default_factory=set, init=False)
    _changed: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    _validating: bool = field(default=False, init=False)
    _error: BaseException | None = field(default=None, init=False)
    _running: Running[None] | None = field(default=None, init=False)
    _player: EpisodeGroupPlayer | None = field(default=None, init=False)
    # No more tasks may be drawn for the step of the next group.
    _drained: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        settings = self.config.async_training
        rule = self.config.algorithm.filter_groups
        if settings.partial_rollout:
            self.engines = {}
        self.queue = GroupQueue(
            batch=self.config.data.train_batch_size,
            paces=self.paces,
            drops=settings.max_off_policy_strategy == "drop",
            steps=self.steps,
            max_failures=settings.max_task_failures,
        )
        self.draws = TaskDraws(self.loader, self.queue, rule, whole=settings.fresh and rule.enable)
        self.busy = BusyTime()
        self._greedy = self.plan.greedy_episodes and not rule.enable

    def take(self, step: int, stop: StopRequest) -> StepSamples:
        """As `SampleSource.take`; the first call starts the stream."""
        if self._running is None:
            self._running = self.loop.start(self._run())
        return super().take(step, stop)

    def wants(self, step: int, policy: str) -> bool:
        """As `AsynchronousSource.wants`, by `async_training.parameter_sync`."""

        def look() -> bool:
            ahead = self.queue.taken > step or self.queue.count("complete") >= self.queue.batch
            return self.queue.paces[policy].sends(
                self.config.async_training.parameter_sync, step, self.queue.versions[policy], ahead
            )

        return self.loop.call(look)

    def update_ended(self, step: int, policies: Collection[str]) -> None:
        """Wait for the replies in progress if they may not go on with new weights; otherwise
        engines take these while they sample.
        """
        due = [engine for policy, engine in self.engines.items() if policy in policies]

        async def drain() -> None:
            await asyncio.gather(*(client.drain(adapter) for client, adapter in due))

        self.loop.start(drain()).result()

    def published(self, version: int, policies: Collection[str]) -> None:
        """Dispatch the groups for which new weights of policies make room."""

        def publish() -> None:
            for policy in policies:
                if policy in self.engines:
                    client, adapter = self.engines[policy]
                    client.release(adapter)
            self.queue.versions |= dict.fromkeys(policies, version)
            self._notify()

        self.loop.call(publish)

    def set_validating(self, validating: bool) -> None:
        """Begin no episodes during a validation; those in progress go on."""

        def set_it() -> None:
            self._validating = validating
            self.busy.begin()  # is no part of a step
            if self._player is not None:
                self._player.set_open(not validating)
            self._notify()

        self.loop.call(set_it)

    def ready(self) -> bool:
        """As `AsynchronousSource.ready`; also if `take` would raise at once."""

        def look() -> bool:
            return self._error is not None or self.queue.ready

        return self.loop.call(look)

    def metrics(self, step: int, step_s: float) -> dict[str, float]:
        """Return the ledger of groups, the lead of policies over their engines, the share of the
        step without a group, and the loop's lag.

        The lag is the largest delay of the event loop in the step.
        """

        def measure() -> dict[str, float]:
            busy = self.busy.metrics()
            self.queue.close(step)
            self.draws.close(step)
            leads = {
                f"fully_async/lead/{policy}": float(max(step - engine_version, 0))
                for policy, engine_version in self.queue.versions.items()
            }
            return count_metrics(self.queue) | leads | busy

        return self.loop.call(measure)

    def rewind(self, step: int) -> None:
        """As `SampleSource.rewind`: the groups of a later step are complete, and taken by no step."""
        self.loop.call(partial(self.queue.undo, step), blocked_too=True)

    def save(self, folder: Path) -> None:
        """Write all groups with their episodes; those in progress will be played again."""

        def snapshot() -> tuple[dict[str, Any], list[FinishedEpisode]]:
            state: dict[str, Any] = {
                "batch": self.queue.batch,
                "fresh": self.config.async_training.fresh,
                "bounds": {policy: pace.bound for policy, pace in self.queue.paces.items()},
                "queue": self.queue.state_dict(),
                "loader": self.loader.state_dict(),
                "draws": self.draws.state_dict(),
            }
            return state, [e for group in self.queue.groups.values() for e in group.episodes]

        state, episodes = self.loop.call(snapshot, blocked_too=True)
        (folder / FOLDER).mkdir()
        (folder / FOLDER / STATE).write_text(json.dumps(state))
        self.collector.save_episodes(episodes, folder / FOLDER)

    def load(self, folder: Path) -> None:
        """Restore `save` of a checkpoint that passes `check_checkpoint`."""
        if not (folder / FOLDER).is_dir():
            return
        state = json.loads((folder / FOLDER / STATE).read_text())
        self.queue.load_state_dict(state["queue"], self.collector.load_episodes(folder / FOLDER))
        self.loader.load_state_dict(state["loader"])
        self.draws.load_state_dict(state["draws"])

    def _notify(self) -> None:
        self._changed.set()

    async def _run(self) -> None:
        """Dispatch groups for ever; an error ends the stream and is raised by `take`."""
        try:
            async with self.collector.groups(
                self.config.data.train_batch_size * self.config.env.rollout.n
            ) as player:
                self._player = player
                for group in self.queue.of("running"):  # of a checkpoint
                    self._start(group, player)
                lag = asyncio.create_task(self.busy.measure_lag())
                try:
                    while True:
                        self._fill(player)
                        await self._change()
                finally:
                    for task in (lag, *self._tasks):
                        task.cancel()
                    await asyncio.gather(lag, *self._tasks, return_exceptions=True)
        except Exception as error:
            self._fail(error)
            raise

    def _fill(self, player: EpisodeGroupPlayer) -> None:
        """Begin groups while there is room and their steps may have more tasks."""
        before = self._drained
        self._drained = False
        while (self.queue.capacity or self.draws.begun) and not self._validating and self._error is None:
            group = self.draws.next_group()
            if group is None:
                self._drained = True
                break
            self._start(self.queue.dispatch(*group), player)
        if self._drained and not before:
            self._notify()  # a step may wait for groups that do not come

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    def _fail(self, error: BaseException) -> None:
        self._error = self._error or error
        self._notify()

    def _start(self, group: Group, player: EpisodeGroupPlayer) -> None:
        self.busy.add(1)
        task = asyncio.create_task(self._play(group, player), name=f"group {group.index}")
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self.busy.add(-1)
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error)
        self._notify()

    async def _play(self, group: Group, player: EpisodeGroupPlayer) -> None:
        task = self.loader.source[group.task_index]
        play = partial(player.play, task, step=group.step, attempt=group.attempt, number=group.number)
        calls = [play(self.config.env.rollout.n)]
        if self._greedy:
            calls.append(play(1, greedy=True))
        sampled, *greedy = await asyncio.gather(*calls)
        failed = all(episode.failure is not None for episode in sampled)
        self.draws.failures = self.draws.failures + 1 if failed else 0
        state: GroupState = "failed" if failed else "complete"
        if state == "complete" and self.config.algorithm.filter_groups.enable:
            has_signal = await asyncio.to_thread(self._has_signal, player, sampled)
            state = "complete" if has_signal else "rejected"
        self._end(group, state, sampled, *greedy)

    def _end(
        self,
        group: Group,
        state: GroupState,
        sampled: Sequence[FinishedEpisode],
        greedy: Sequence[FinishedEpisode] = (),
    ) -> None:
        group.sampled = sampled
        group.greedy = greedy
        self.queue.move(state, group)
        count = self.queue.failures.get(group.task_index)
        # Once: groups of the task that began before may fail later.
        if state == "failed" and count == self.queue.max_failures:
            last = sampled[-1]
            logger.warning(
                "task %s is set aside: its last %d groups failed, the last one with %s",
                last.task_id,
                count,
                last.failure,
            )

    def _has_signal(self, player: EpisodeGroupPlayer, sampled: Sequence[FinishedEpisode]) -> bool:
        rows = player.rows(sampled)
        return rows is not None and bool(signal_rows(rows, self.config.algorithm).any())

    async def _collect(self, step: int) -> StepSamples:
        clock = asyncio.get_running_loop().time
        late_at = clock() + (self.config.async_training.batch_timeout_s or math.inf)
        if not self.queue.count("training"):
            self.busy.begin()
        while (groups := self._next_groups(step, late_s := late_at - clock())) is None:
            await self._wait(step, late_s)
        self.draws.failures = 0
        self._drained = False
        try:
            samples = await self._samples(groups, step)
        except BaseException:
            # After a signal the groups belong into the checkpoint.
            self.queue.undo(step - 1)
            raise
        if samples.batch is None:
            # A run that goes on draws other tasks.
            self.queue.move("failed", *groups)
        self._notify()
        dropped = [e for group in self.queue.of("dropped", step=step) for e in group.episodes]
        return with_dropped(samples, dropped, [e for group in groups for e in group.episodes])

    async def _samples(self, groups: Sequence[Group], step: int) -> StepSamples:
        """Return the samples of a step from its groups and those that failed or were rejected since
        the last one.
        """
        assert self._player is not None
        ended = self.queue.of("training", "failed", "rejected", step=step)
        if not ended:
            all_aside = len(self.queue.set_aside) == self.loader.size
            return StepSamples(None, (), {}, 0, ALL_ASIDE if all_aside else NO_TASKS)
        result = await self._player.result([e for group in ended for e in group.sampled])
        if self.config.algorithm.filter_groups.enable:
            # Without staleness the step has all groups of its batches, of which it keeps the first
            # ones.
            group_ids = None if self.draws.whole else {group.sampled[0].uid for group in groups}
            attempts = max(group.attempt + 1 for group in ended)
            return keep_signal(
                self.config.algorithm,
                self.config.data.train_batch_size,
                result,
                attempts,
                len(ended),
                step,
                group_ids,
            )
        play_greedy = partial(self._player.result, [e for group in ended for e in group.greedy])
        return await with_baselines(self.config.reward, result, play_greedy if self._greedy else None)

    def _next_groups(self, step: int, late_s: float) -> list[Group] | None:
        """Return the groups of a step, or None if it has to wait; it is late in `late_s` seconds."""
        if self._error is not None:
            raise self._error
        if self.draws.whole:
            if self.queue.count("running") or self.draws.begun:
                return None
            self.queue.move("rejected", *self.queue.of("complete")[self.queue.batch :])
        dropped = self.queue.count("dropped")
        least = self.config.async_training.least_batch_size if late_s <= 0 else None
        if self._drained and not self.queue.count("running"):
            least = 0
        groups = self.queue.take(step, least)
        if self.queue.count("dropped") > dropped:
            self._notify()  # there is room for others
        return groups

    async def _wait(self, step: int, late_s: float) -> None:
        """Wait until a group ends, or until the step is late, in `late_s` seconds if that is
        positive.

        Raises TimeoutError if no group ends within the time that episodes may take, and none in
        progress has time left.
        """
        assert self._player is not None
        rollout = self.config.rollout
        rounds = 2 * math.ceil(self.config.env.rollout.n / max(rollout.max_concurrent_episodes, 1))
        limit = rounds * self._player.limit_s + rollout.call_timeout_s
        try:
            async with asyncio.timeout(min(limit, late_s) if late_s > 0 else limit):
                await self._change()
        except TimeoutError as error:
            if 0 < late_s < limit or self._player.in_time:
                return
            stuck = listed(map(self._uid, self.queue.of("running")))
            raise TimeoutError(
                f"step {step} waited {limit:g} s for groups in progress: {stuck or 'none'}"
            ) from error

    def _uid(self, group: Group) -> str:
        assert self._player is not None
        task = self.loader.source[group.task_index]
        return self._player.uid(task, step=group.step, attempt=group.attempt, number=group.number)
