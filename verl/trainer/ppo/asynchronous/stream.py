"""`async_training.mode=fully_async`: groups are sampled all the time, and every step trains on those that are
complete.

    event loop of the collector:   dispatch groups while there is room | put complete ones into the queue
    training loop, step s:      take a batch of groups | credit, updates | send the weights of s to the engines

`GroupQueue` decides what is in progress and what a step takes; once a step has begun, its state is used on
the event loop alone.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import time
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from verl.trainer.config import RunConfig
from verl.trainer.plan.run import RunPlan
from verl.trainer.ppo.asynchronous.group_queue import Group, GroupQueue
from verl.trainer.ppo.asynchronous.metrics import count_metrics, with_dropped
from verl.trainer.ppo.asynchronous.pace import Pace
from verl.trainer.ppo.asynchronous.played import Draw, Played, StepGroups
from verl.trainer.ppo.asynchronous.saved_groups import FOLDER, STATE
from verl.trainer.ppo.collect.dynamic_sampling import keep_signal, signal_rows
from verl.trainer.ppo.collect.protocol import EpisodeCollector, EpisodeGroupPlayer, FinishedEpisode
from verl.trainer.ppo.collect.source import OnCollected
from verl.trainer.ppo.collect.step_samples import (
    StepSamples,
    filtered_samples,
    samples_of,
)
from verl.trainer.ppo.interrupt import StopRequest
from verl.utils.dataset import TaskLoader
from verl.utils.loop_thread import LoopThread, Running
from verl.utils.names import listed
from verl.workers.rollout.restart import RestartingClient

logger = logging.getLogger(__name__)
T = TypeVar("T")
# Period of the timer whose delay is the lag of the event loop, in seconds.
TICK_S = 0.05
NO_TASKS = (
    "no more tasks may be drawn for it, and an earlier step trained on those that were; raise "
    "algorithm.filter_groups.max_num_gen_batches, or use tasks of which more have a signal"
)
ALL_ASIDE = "no task can be drawn: all tasks are set aside, see async_training.max_task_failures"


class GroupStream:
    """`AsynchronousSource` of `async_training.mode=fully_async`."""

    def __init__(
        self,
        config: RunConfig,
        plan: RunPlan,
        collector: EpisodeCollector,
        loader: TaskLoader,
        loop: LoopThread,
        on_collected: OnCollected,
        steps: int,
        paces: Mapping[str, Pace],
        engines: Mapping[str, tuple[RestartingClient, str | None]],
    ) -> None:
        """Start with nothing in progress.

        Args:
            config: configuration of the run.
            plan: plan of the run.
            collector: plays groups.
            loader: of the tasks.
            loop: event loop of the collector.
            on_collected: called with the samples of every step.
            steps: number of steps of the run.
            paces: of every trained policy.
            engines: of every trained policy, with its adapter; drained before new weights unless
                `async_training.partial_rollout`.
        """
        self._engines = {} if config.async_training.partial_rollout else engines
        settings = config.async_training
        self.config = config
        self.collector = collector
        self.loader = loader
        self.loop = loop
        self.on_collected = on_collected
        drops = settings.max_off_policy_strategy == "drop"
        self.queue: GroupQueue[Played] = GroupQueue(
            config.data.train_batch_size, paces, drops, steps, settings.max_task_failures
        )
        self._greedy = plan.greedy_episodes and not config.algorithm.filter_groups.enable
        # Dynamic sampling plays whole batches of tasks, as in synchronous training.
        self._whole = settings.fresh and config.algorithm.filter_groups.enable
        self._draws: dict[int, Draw] = {}  # by step
        self._left_out: list[
            tuple[Group, Played]
        ] = []  # failed and rejected groups since the last step, for its metrics
        self._taken = deque[StepGroups]()  # by steps that have not ended, the last one last
        self._tasks: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()
        self._validating = False
        self._error: BaseException | None = None
        self._running: Running[None] | None = None
        self._player: EpisodeGroupPlayer | None = None
        self._since = time.perf_counter()
        self._busy_s = 0.0
        self._metered = self._since  # start of the interval of `_busy_s`
        self._lag_s = 0.0  # largest since the last step
        self._failures = 0  # groups that failed in a row, in this step
        self._drained = False  # no more tasks may be drawn for the step of the next group

    def take(self, step: int, stop: StopRequest) -> StepSamples:
        """As `SampleSource.take`; the first call starts the stream."""
        if self._running is None:
            self._running = self.loop.start(self._run())
        samples = stop.run(self.loop, self._take(step))
        self.on_collected(samples, step)
        return samples

    def update_begins(self, step: int, last: bool) -> None:
        """Do nothing: groups are sampled all the time."""

    def wants(self, step: int, policy: str) -> bool:
        """As `AsynchronousSource.wants`, by `async_training.parameter_sync`."""

        def look() -> bool:
            ahead = self.queue.taken > step or len(self.queue.complete) >= self.queue.batch
            return self.queue.paces[policy].sends(
                self.config.async_training.parameter_sync, step, self.queue.versions[policy], ahead
            )

        return self.loop.call(look)

    def update_ended(self, step: int, policies: Collection[str]) -> None:
        """Wait for the replies in progress if they may not go on with new weights; otherwise engines take
        these while they sample.
        """
        due = [engine for policy, engine in self._engines.items() if policy in policies]

        async def drain() -> None:
            await asyncio.gather(*(client.drain(adapter) for client, adapter in due))

        self.loop.start(drain()).result()

    def published(self, version: int, policies: Collection[str]) -> None:
        """Dispatch the groups for which new weights of policies make room."""

        def publish() -> None:
            for policy in policies:
                if policy in self._engines:
                    client, adapter = self._engines[policy]
                    client.release(adapter)
            self.queue.versions |= dict.fromkeys(policies, version)
            self._notify()

        self.loop.call(publish)

    def set_validating(self, validating: bool) -> None:
        """Begin no episodes during a validation; those in progress go on."""

        def set_it() -> None:
            self._validating = validating
            self._begin_interval()  # is no part of a step
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
        """Return the ledger of groups, the lead of policies over their engines, the share of the step without
        a group, and the loop's lag.

        The lag is the largest delay of the event loop in the step.
        """

        def measure() -> dict[str, float]:
            busy, seconds = self._take_busy()
            while self._taken and self._taken[0].step <= step:
                ended = self._taken.popleft()
                self.queue.count_stale(ended.step, ended.groups)
            counts = count_metrics(self.queue, sum(len(step_groups.groups) for step_groups in self._taken))
            counts |= {
                f"fully_async/lead/{policy}": float(max(step - engine_version, 0))
                for policy, engine_version in self.queue.versions.items()
            }
            lag = self._lag_s
            self._lag_s = 0.0
            return counts | {
                "rollouter/idle_ratio": max(1 - busy / seconds, 0.0),
                "rollouter/loop_lag_s": lag,
            }

        return self.loop.call(measure)

    def rewind(self, step: int) -> None:
        """As `SampleSource.rewind`: the groups of a later step are complete, and taken by no step."""

        def undo() -> None:
            while self._taken and self._taken[-1].step > step:
                self._put_back(self._taken.pop())
            self.queue.versions = {
                policy: min(version, step) for policy, version in self.queue.versions.items()
            }

        self.loop.call(undo, blocked_too=True)

    def _put_back(self, step_groups: StepGroups) -> None:
        self.queue.put_back(step_groups.groups)
        self._draws |= step_groups.draws
        self._left_out, self.queue.late = (
            [*step_groups.left_out, *self._left_out],
            [*step_groups.late, *self.queue.late],
        )

    def save(self, folder: Path) -> None:
        """Write complete groups with their episodes, and which groups are in progress: they will be played
        again.
        """

        def snapshot() -> tuple[dict[str, Any], list[Played]]:
            state: dict[str, Any] = {
                "batch": self.queue.batch,
                "fresh": self.config.async_training.fresh,
                "bounds": {policy: pace.bound for policy, pace in self.queue.paces.items()},
                "queue": self.queue.state_dict(),
                "loader": self.loader.state_dict(),
                "draws": [[step, asdict(draw)] for step, draw in self._draws.items()],
                "left_out": [asdict(group) for group, _ in self._left_out],
                "late": [asdict(group) for group, _ in self.queue.late],
            }
            return state, [
                group_episodes
                for _, group_episodes in (*self.queue.complete.values(), *self._left_out, *self.queue.late)
            ]

        state, groups = self.loop.call(snapshot, blocked_too=True)
        (folder / FOLDER).mkdir()
        state["episodes"] = [
            [len(group_episodes.sampled), len(group_episodes.greedy)] for group_episodes in groups
        ]
        (folder / FOLDER / STATE).write_text(json.dumps(state))
        self.collector.save_episodes(
            [e for group_episodes in groups for e in group_episodes.episodes], folder / FOLDER
        )

    def load(self, folder: Path) -> None:
        """Restore `save` of a checkpoint that passes `check_checkpoint`."""
        if not (folder / FOLDER).is_dir():
            return
        state = json.loads((folder / FOLDER / STATE).read_text())
        episodes = iter(self.collector.load_episodes(folder / FOLDER))
        contents = [
            Played([next(episodes) for _ in range(n)], [next(episodes) for _ in range(greedy)])
            for n, greedy in state["episodes"]
        ]
        left_out, late = ([Group(**group) for group in state[name]] for name in ("left_out", "late"))
        complete = len(contents) - len(left_out) - len(late)
        ended = len(contents) - len(late)
        self.queue.load_state_dict(state["queue"], contents[:complete])
        self._left_out = list(zip(left_out, contents[complete:ended], strict=True))
        self.queue.late = list(zip(late, contents[ended:], strict=True))
        self.loader.load_state_dict(state["loader"])
        self._draws = {step: Draw(**draw) for step, draw in state["draws"]}

    def _notify(self) -> None:
        self._changed.set()

    def _count_busy(self) -> None:
        now = time.perf_counter()
        self._busy_s += now - self._since if self._tasks else 0.0
        self._since = now

    def _begin_interval(self) -> None:
        self._take_busy()
        self._lag_s = 0.0

    def _take_busy(self) -> tuple[float, float]:
        """Return the seconds since the last call in which a group was in progress, and all of them."""
        self._count_busy()
        busy = self._busy_s
        seconds = self._since - self._metered
        self._busy_s = 0.0
        self._metered = self._since
        return busy, seconds

    async def _run(self) -> None:
        """Dispatch groups for ever; an error ends the stream and is raised by `take`."""
        try:
            async with self.collector.groups(
                self.config.data.train_batch_size * self.config.env.rollout.n
            ) as player:
                self._player = player
                for group in list(self.queue.running.values()):  # of a checkpoint
                    self._start(group, player)
                lag = asyncio.create_task(self._measure_lag())
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

    async def _measure_lag(self) -> None:
        """Note how late a timer is: what delays it delays all episodes."""
        while True:
            due = time.perf_counter() + TICK_S
            await asyncio.sleep(TICK_S)
            self._lag_s = max(self._lag_s, time.perf_counter() - due)

    def _fill(self, player: EpisodeGroupPlayer) -> None:
        """Begin groups while there is room and their steps may have more tasks."""
        before = self._drained
        self._drained = False
        while (
            (self.queue.capacity or self._begun)
            and not self._validating
            and self._error is None
            and not self._drained
        ):
            group = self._dispatch()
            self._drained = group is None
            if group is not None:
                self._start(group, player)
        if self._drained and not before:
            self._notify()  # a step may wait for groups that do not come

    @property
    def _begun(self) -> bool:
        """Whether only a part of a batch of tasks that is played as a whole has begun."""
        return self._whole and bool(self._draws.get(self.queue.taken + 1, Draw()).left)

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    def _fail(self, error: BaseException) -> None:
        self._error = self._error or error
        self._notify()

    def _dispatch(self) -> Group | None:
        """Begin a group, or return None if its step has to make do with those that it has."""
        draw = self._draws.setdefault(self.queue.next_step, Draw())
        if not draw.left:
            self._draw_tasks(draw)
        return self.queue.dispatch(*draw.left.pop(0)) if draw.left else None

    def _draw_tasks(self, draw: Draw) -> None:
        """Draw the tasks of a step: a batch, then one for each group that failed or was rejected.

        Without staleness dynamic sampling draws and plays further batches, as synchronous training does. No
        task is drawn after all tasks or `max_num_gen_batches` batches, nor after as many failures in a row as
        a batch has groups.
        """
        rule = self.config.algorithm.filter_groups
        if (
            self._failures >= self.queue.batch
            or 0 < rule.max_num_gen_batches * self.queue.batch * rule.enable <= len(draw.places)
        ):
            return
        batch = self.queue.batch
        attempt = len(draw.places) // batch
        count = batch if self._whole or not draw.places else 1
        if len(draw.places) % batch == 0:
            draw.seen = {}
        places = [] if draw.places else self._left_over()
        places += (
            self.loader.take(count - len(places), [*draw.places, *places, *self.queue.set_aside])
            if len(places) < count
            else []
        )
        for place in places:
            task = self.collector.task_id(self.loader.source[place])
            draw.left.append((place, attempt, draw.seen.get(task, 0)))
            draw.seen[task] = draw.left[-1][2] + 1
        draw.places += places

    def _left_over(self) -> list[int]:
        """Return, and forget, the tasks of earlier steps that were drawn but not dispatched, because these
        steps trained on fewer.
        """
        past = [step for step in self._draws if step <= self.queue.taken]
        return [place for step in past for place, _, _ in self._draws.pop(step).left]

    def _start(self, group: Group, player: EpisodeGroupPlayer) -> None:
        self._count_busy()
        task = asyncio.create_task(self._play(group, player), name=f"group {group.index}")
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._count_busy()
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error)
        self._notify()

    async def _play(self, group: Group, player: EpisodeGroupPlayer) -> None:
        row = self.loader.source[group.place]
        n = self.config.env.rollout.n
        play = partial(player.play, row, step=group.step, attempt=group.attempt, number=group.number)
        group_episodes = Played(
            *await asyncio.gather(play(n), *([play(1, greedy=True)] if self._greedy else ()))
        )
        failed = all(episode.failure is not None for episode in group_episodes.sampled)
        self._failures = self._failures + 1 if failed else 0
        if failed:
            self._count_failure(group, group_episodes.sampled[-1])
        elif self.config.algorithm.filter_groups.enable and not await asyncio.to_thread(
            self._has_signal, player, group_episodes
        ):
            self.queue.reject(group)
        else:
            self.queue.end(group, group_episodes)
            return
        self._left_out.append((group, group_episodes))

    def _count_failure(self, group: Group, last: FinishedEpisode) -> None:
        self.queue.fail(group)
        if (count := self.queue.failures[group.place]) == self.queue.max_failures:
            logger.warning(
                "task %s is set aside: its last %d groups failed, the last one with %s",
                last.task_id,
                count,
                last.failure,
            )

    def _has_signal(self, player: EpisodeGroupPlayer, group_episodes: Played) -> bool:
        return (rows := player.rows(group_episodes.sampled)) is not None and bool(
            signal_rows(rows, self.config.algorithm).any()
        )

    async def _take(self, step: int) -> StepSamples:
        clock = asyncio.get_running_loop().time
        patience_s = self.config.async_training.batch_timeout_s or math.inf
        late_at = clock() + patience_s
        if not self._taken:
            self._begin_interval()
        while (groups := self._next_groups(step, late_s := late_at - clock())) is None:
            await self._wait(step, late_s)
        self._failures = 0
        self._drained = False
        over = {of: draw for of, draw in self._draws.items() if of <= self.queue.taken and not draw.left}
        step_groups = StepGroups(step, groups, self._left_out, self.queue.late, over)
        self._left_out, self.queue.late = [], []
        try:
            samples = await self._samples(groups, step_groups.left_out, step)
        except BaseException:  # after a signal the groups belong into the checkpoint
            self._put_back(step_groups)
            raise
        if samples.batch is None:  # a run that goes on draws other tasks
            self.queue.fail_taken(len(groups))
            step_groups = replace(step_groups, groups=(), left_out=[*step_groups.left_out, *groups])
        self._taken.append(step_groups)
        self._draws = {of: draw for of, draw in self._draws.items() if of not in over}
        self._notify()
        late, trained = (
            [e for _, group_episodes in ended for e in group_episodes.episodes]
            for ended in (step_groups.late, groups)
        )
        return with_dropped(samples, late, trained)

    async def _samples(
        self, groups: Sequence[tuple[Group, Played]], left_out: Sequence[tuple[Group, Played]], step: int
    ) -> StepSamples:
        """Return the samples of a step from its groups and those that failed or were rejected since the last
        one.
        """
        assert self._player is not None
        ended = sorted([*groups, *left_out], key=lambda ended: ended[0].index)
        if not ended:
            return StepSamples(
                None, (), {}, 0, ALL_ASIDE if len(self.queue.set_aside) == self.loader.size else NO_TASKS
            )
        result = await self._player.result([e for _, group_episodes in ended for e in group_episodes.sampled])
        if self.config.algorithm.filter_groups.enable:
            attempts = max(group.attempt + 1 for group, _ in ended)
            group_ids = (
                None if self._whole else {group_episodes.sampled[0].uid for _, group_episodes in groups}
            )
            return filtered_samples(
                keep_signal(
                    self.config.algorithm, self.config.data, result, attempts, len(ended), step, group_ids
                )
            )
        if result.batch is None or not self._greedy:
            return samples_of(self.config.reward, result)
        return samples_of(
            self.config.reward,
            result,
            await self._player.result([e for _, group_episodes in ended for e in group_episodes.greedy]),
        )

    def _next_groups(self, step: int, late_s: float) -> list[tuple[Group, Played]] | None:
        """Return the groups of a step, or None if it has to wait; it is late in `late_s` seconds."""
        if self._error is not None:
            raise self._error
        if self._whole:
            if self.queue.running or self._begun:
                return None
            self._left_out += self.queue.reject_surplus()
        dropped = self.queue.dropped
        least = self.config.async_training.least_batch_size if late_s <= 0 else None
        groups = self.queue.take(step, 0 if self._drained and not self.queue.running else least)
        if self.queue.dropped > dropped:
            self._notify()
        return groups

    async def _wait(self, step: int, late_s: float) -> None:
        """Wait until a group ends, or until the step is late, in `late_s` seconds if that is positive.

        Raises TimeoutError if no group ends within the time that episodes may take, and none in progress has
        time left.
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
            stuck = listed(map(self._uid, self.queue.running.values()))
            raise TimeoutError(
                f"step {step} waited {limit:g} s for groups in progress: {stuck or 'none'}"
            ) from error

    def _uid(self, group: Group) -> str:
        assert self._player is not None
        row = self.loader.source[group.place]
        return self._player.uid(row, step=group.step, attempt=group.attempt, number=group.number)
