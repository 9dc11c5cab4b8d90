"""`async_training.mode=fully_async`: groups are sampled all the time, and every step trains on those that are complete.

    event loop of the collector:   dispatch groups while there is room | put complete ones into the queue
    training loop, step s:         take a batch of groups | credit and updates | send the weights of s to the engines

How many groups are in progress, and which ones a step takes, is decided by `GroupQueue`. All of its state is used on the event loop alone.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Collection, Coroutine, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

from verl.protocol import DataProto
from verl.trainer.config import RunConfig
from verl.trainer.ppo.asynchronous.group_queue import Group, GroupQueue
from verl.trainer.ppo.asynchronous.pace import Pace
from verl.trainer.ppo.collect.dynamic_sampling import keep_signal, signal_rows
from verl.trainer.ppo.collect.protocol import Collector, Episode, GroupPlayer
from verl.trainer.ppo.collect.source import OnCollected
from verl.trainer.ppo.collect.step_samples import StepSamples, filtered_samples, needs_greedy_episodes, samples_of
from verl.trainer.ppo.interrupt import StopRequest
from verl.utils.dataset import TaskLoader
from verl.utils.loop_thread import LoopThread, Running

T = TypeVar("T")
FOLDER, STATE = "groups", "queue.json"


class Engine(Protocol):
    """Requests of one engine."""

    async def drain(self) -> None:
        """Let new requests wait until `release`, and return when none is in flight."""
        ...

    def release(self) -> None:
        """Serve requests again."""
        ...


@dataclass(frozen=True)
class Played:
    """The episodes of a group: sampled ones, and the greedy one of its baseline."""

    sampled: Sequence[Episode]
    greedy: Sequence[Episode] = ()

    @property
    def episodes(self) -> list[Episode]:
        """All episodes."""
        return [*self.sampled, *self.greedy]


@dataclass
class Draw:
    """Tasks that were drawn for one step.

    Attributes:
        batches: number of batches of tasks.
        places: all of them, in the data set.
        left: those of the last batch that are not dispatched yet, as (place, number of equal tasks before it).
    """

    batches: int = 0
    places: list[int] = field(default_factory=list)
    left: list[tuple[int, int]] = field(default_factory=list)


class GroupStream:
    """`SampleSource` of `async_training.mode=fully_async`."""

    def __init__(
        self,
        config: RunConfig,
        collector: Collector,
        loader: TaskLoader,
        loop: LoopThread,
        on_collected: OnCollected,
        steps: int,
        paces: Mapping[str, Pace],
        engines: Sequence[Engine],
    ) -> None:
        """Start with nothing in progress.

        Args:
            config: configuration of the run.
            collector: plays groups.
            loader: of the tasks.
            loop: event loop of the collector.
            on_collected: called with the samples of every step.
            steps: number of steps of the run.
            paces: of every trained policy.
            engines: of trained policies, which are drained before new weights unless `async_training.partial_rollout`.
        """
        self._engines = () if config.async_training.partial_rollout else tuple(engines)
        settings = config.async_training
        self.config, self.collector, self.loader, self.loop, self.on_collected = config, collector, loader, loop, on_collected
        self.queue: GroupQueue[Played] = GroupQueue(
            config.data.train_batch_size,
            paces,
            settings.max_off_policy_strategy == "drop",
            steps * config.data.train_batch_size,
        )
        self._greedy = needs_greedy_episodes(config) and not config.algorithm.filter_groups.enable
        self._draws: dict[int, Draw] = {}  # by step
        self._rejected: list[tuple[Group, Played]] = []  # since the last step
        self._tasks: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()
        self._validating = False
        self._error: BaseException | None = None
        self._running: Running[None] | None = None
        self._player: GroupPlayer | None = None
        self._since, self._busy_s = time.perf_counter(), 0.0

    def take(self, step: int, stop: StopRequest) -> StepSamples:
        """As `SampleSource.take`; the first call starts the stream."""
        if self._running is None:
            self._running = self.loop.start(self._run())
        samples = stop.run(self.loop, self._take(step))
        self.on_collected(samples, step)
        return samples

    def update_begins(self, step: int, last: bool) -> None:
        """Do nothing: groups are sampled all the time."""

    def update_ended(self, step: int) -> None:
        """Wait for the replies in progress if they may not go on with new weights; otherwise engines take these while they sample."""

        async def drain() -> None:
            await asyncio.gather(*(engine.drain() for engine in self._engines))

        self._on_loop(drain())

    def published(self, version: int, policies: Collection[str]) -> None:
        """Dispatch the groups for which new weights of policies make room."""

        async def publish() -> None:
            for engine in self._engines:
                engine.release()
            self.queue.versions |= dict.fromkeys(policies, version)
            self._notify()

        self._on_loop(publish())

    def set_validating(self, validating: bool) -> None:
        """Dispatch no new groups during a validation; those in progress go on."""

        async def set_it() -> None:
            self._validating = validating
            self._notify()

        self._on_loop(set_it())

    def metrics(self, step_s: float) -> dict[str, float]:
        """Return the ledger of groups, and the share of the step in which none was in progress."""

        async def measure() -> dict[str, float]:
            self._count_busy()
            busy, self._busy_s = self._busy_s, 0.0
            counts = {f"fully_async/count/{name}": float(value) for name, value in self.queue.counts().items()}
            return counts | {"rollouter/idle_ratio": max(1 - busy / step_s, 0.0)}

        return self._on_loop(measure())

    def save(self, folder: Path) -> None:
        """Write complete groups with their episodes, and which groups are in progress: they will be played again."""

        async def snapshot() -> tuple[dict[str, Any], list[Played]]:
            state: dict[str, Any] = {
                "queue": self.queue.state_dict(),
                "draws": [[step, asdict(draw)] for step, draw in self._draws.items()],
            }
            state["rejected"] = [asdict(group) for group, _ in self._rejected]
            return state, [played for _, played in (*self.queue.complete.values(), *self._rejected)]

        state, groups = self._on_loop(snapshot())
        (folder / FOLDER).mkdir()
        state["episodes"] = [[len(played.sampled), len(played.greedy)] for played in groups]
        (folder / FOLDER / STATE).write_text(json.dumps(state))
        self.collector.save_episodes([e for played in groups for e in played.episodes], folder / FOLDER)

    def load(self, folder: Path) -> None:
        """Restore `save`."""
        if not (folder / FOLDER).is_dir():
            return
        state = json.loads((folder / FOLDER / STATE).read_text())
        episodes = iter(self.collector.load_episodes(folder / FOLDER))
        contents = [Played([next(episodes) for _ in range(n)], [next(episodes) for _ in range(greedy)]) for n, greedy in state["episodes"]]
        rejected = [Group(**group) for group in state["rejected"]]
        complete = len(contents) - len(rejected)
        self.queue.load_state_dict(state["queue"], contents[:complete])
        self._rejected = list(zip(rejected, contents[complete:], strict=True))
        self._draws = {step: Draw(**draw) for step, draw in state["draws"]}

    def _on_loop(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.start(work).result()

    def _notify(self) -> None:
        self._changed.set()

    def _count_busy(self) -> None:
        now = time.perf_counter()
        self._busy_s += now - self._since if self._tasks else 0.0
        self._since = now

    async def _run(self) -> None:
        """Dispatch groups for ever; an error ends the stream and is raised by `take`."""
        try:
            async with self.collector.groups(self.config.data.train_batch_size * self.config.env.rollout.n) as player:
                self._player = player
                for group in list(self.queue.running.values()):  # of a checkpoint
                    self._start(group, player)
                try:
                    while True:
                        while self.queue.capacity and not self._validating:
                            self._start(self._dispatch(), player)
                        await self._change()
                finally:
                    for task in self._tasks:
                        task.cancel()
                    await asyncio.gather(*self._tasks, return_exceptions=True)
        except Exception as error:
            self._fail(error)
            raise

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    def _fail(self, error: BaseException) -> None:
        self._error = self._error or error
        self._notify()

    def _dispatch(self) -> Group:
        step = self.queue.next_step
        draw = self._draws.setdefault(step, Draw())
        if not draw.left:
            places, seen = self.loader.take(self.queue.batch, draw.places), Counter[str]()
            if not places:
                raise RuntimeError(
                    f"all {len(draw.places)} tasks were sampled for step {step}, and fewer than {self.queue.batch} can be trained on"
                )
            for place in places:
                task = self.collector.task_id(self.loader.source[place])
                draw.left.append((place, seen[task]))
                seen[task] += 1
            draw.batches, draw.places = draw.batches + 1, draw.places + places
        place, number = draw.left.pop(0)
        return self.queue.dispatch(place, draw.batches - 1, number)

    def _start(self, group: Group, player: GroupPlayer) -> None:
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

    async def _play(self, group: Group, player: GroupPlayer) -> None:
        row, n = self.loader.source[group.place], self.config.env.rollout.n
        play = partial(player.play, row, step=group.step, attempt=group.attempt, number=group.number)
        played = Played(*await asyncio.gather(play(n), *([play(1, greedy=True)] if self._greedy else ())))
        if all(episode.failure is not None for episode in played.sampled):
            self.queue.fail(group)
        elif self._filters(group) and not self._has_signal(player.rows(played.sampled)):
            self.queue.reject(group)
            self._rejected.append((group, played))
        else:
            self.queue.end(group, played)

    def _filters(self, group: Group) -> bool:
        """Return whether another task may be sampled in place of this group: not in the last batch of tasks of its step."""
        rule = self.config.algorithm.filter_groups
        return rule.enable and (rule.max_num_gen_batches == 0 or group.attempt + 1 < rule.max_num_gen_batches)

    def _has_signal(self, rows: DataProto | None) -> bool:
        return rows is not None and bool(signal_rows(rows, self.config.algorithm).any())

    async def _take(self, step: int) -> StepSamples:
        while (groups := self._next_groups(step)) is None:
            await self._wait(step)
        self._notify()
        assert self._player is not None
        self._draws = {of: draw for of, draw in self._draws.items() if of > self.queue.trained // self.queue.batch}
        if self.config.algorithm.filter_groups.enable:
            rejected, self._rejected = self._rejected, []
            sampled = sorted([*groups, *rejected], key=lambda ended: ended[0].index)
            whole = await self._player.result([e for _, played in sampled for e in played.sampled])
            drawn = max(group.attempt + 1 for group, _ in sampled)
            return filtered_samples(keep_signal(self.config, whole, drawn, len(sampled), step))
        result = await self._player.result([e for _, played in groups for e in played.sampled])
        if result.batch is None or not self._greedy:
            return samples_of(self.config, result)
        return samples_of(self.config, result, await self._player.result([e for _, played in groups for e in played.greedy]))

    def _next_groups(self, step: int) -> list[tuple[Group, Played]] | None:
        if self._error is not None:
            raise self._error
        return self.queue.take(step)

    async def _wait(self, step: int) -> None:
        """Wait until a group ends. Raises TimeoutError if none does within the time that episodes may take."""
        limit = 2 * self.config.rollout.episode_timeout_s + self.config.rollout.call_timeout_s
        try:
            async with asyncio.timeout(limit):
                await self._change()
        except TimeoutError as error:
            stuck = ", ".join(self.collector.task_id(self.loader.source[group.place]) for group in self.queue.running.values())
            raise TimeoutError(f"step {step} waited {limit:g} s for tasks in progress: {stuck or 'none'}") from error
