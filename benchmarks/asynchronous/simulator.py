"""Discrete-event simulation of training: episodes with sequential calls and waits, engines that decode
batches, updates, weight syncs.

Coroutines in simulated time (`virtual_time.py`). The schedules are those of `async_training.mode`;
`fully_async` has its admission, its deadlines and its order of taking groups, for one policy.
"""

from __future__ import annotations

import asyncio
import heapq
import math
import statistics
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TypeAlias

from benchmarks.asynchronous.virtual_time import simulate

# tokens of the reply and seconds of the wait after it, of every call
Episode: TypeAlias = Sequence[tuple[int, float]]
Group: TypeAlias = Sequence[Episode]
# an engine runs a multiple of so many rows, each over a multiple of so many cached tokens
ROW_BLOCK, CACHE_BLOCK = (
    8,
    64,
)
TICK_S = 1e-9  # replies that end so soon have ended: the clock cannot tell such times apart
TICK_STEPS = 1e-3  # the same for a block of the cache that is full so soon


@dataclass(frozen=True)
class Costs:
    """Seconds of everything, and devices.

    Attributes:
        decode_s, row_s, cache_s: a decode step takes `decode_s + rows * (row_s + cache_s * length)`; rows are
            the slots up to the last one in use, length is that of the longest prompt and reply among them.
        call_s: an engine's time for a call before its first token, control included.
        update_s, update_token_s: an update takes `update_s + update_token_s * tokens`, prompts included.
        log_prob_token_s: old log-probs per token; not computed in mode `sync`.
        sync_s: weights to the engines, which do not sample meanwhile.
        rest_s: everything else of a step in the trainer.
        engine_speed, update_speed: speed of an engine during an update, and of an update while an engine
            samples; 1 with separate devices.
        engines: number of engines.
        slots: of each engine.
        prompt_tokens: of a call.
    """

    decode_s: float
    row_s: float
    cache_s: float = 0.0
    call_s: float = 0.0
    update_s: float = 0.0
    update_token_s: float = 0.0
    log_prob_token_s: float = 0.0
    sync_s: float = 0.0
    rest_s: float = 0.0
    engine_speed: float = 1.0
    update_speed: float = 1.0
    engines: int = 1
    slots: int = 64
    prompt_tokens: int = 64


@dataclass(frozen=True)
class Schedule:
    """`async_training.mode` and, in `fully_async`, staleness threshold (tau), steps between two weight syncs
    (M), off-policy bound (K).

    Raises ValueError if more groups would be in flight than can be trained within the bound.
    """

    mode: str = "sync"
    staleness: float = 2.0
    trigger: int = 1
    off_policy: int = 4

    def __post_init__(self) -> None:
        ahead = (1 + self.staleness) * self.trigger
        if self.mode == "fully_async" and ahead > self.off_policy + 1:
            raise ValueError(
                f"{ahead:g} steps of groups in flight, but each must be trained within "
                f"{self.off_policy + 1}: raise off_policy"
            )


@dataclass
class Report:
    """Result of a simulation.

    Attributes:
        updated: time at the end of every update.
        staleness: largest number of steps between the weights that a group started with and those that it
            trains, of every step.
        sampling, updating: beginning and end of the times in which an engine samples, and the trainer works.
    """

    updated: list[float] = field(default_factory=list)
    staleness: list[int] = field(default_factory=list)
    sampling: list[tuple[float, float]] = field(default_factory=list)
    updating: list[tuple[float, float]] = field(default_factory=list)

    def step_s(self, warm_up: int, steps: int) -> float:
        """Return the mean seconds from the end of one update to that of the next, over the `steps` after the
        warm-up.
        """
        ends = self.updated[warm_up - 1 : warm_up + steps]
        return statistics.mean(after - before for before, after in pairwise(ends))


class Devices:
    """Speed of engines and updates, which slow each other down on shared devices."""

    def __init__(self, costs: Costs) -> None:
        self._costs = costs
        self._changed = asyncio.Event()
        self._busy = 0
        self._began = 0.0
        self._updating = False
        self.engines: list[Engine] = []
        self.sampling: list[tuple[float, float]] = []
        self.updating: list[tuple[float, float]] = []

    @property
    def engine_speed(self) -> float:
        """Speed of the engines now."""
        return self._costs.engine_speed if self._updating else 1.0

    def add_busy(self, count: int) -> None:
        """Count engines that start (or end) to sample."""
        now = asyncio.get_running_loop().time()
        if self._busy == 0:
            self._began = now
        self._busy += count
        if self._busy == 0:
            self.sampling.append((self._began, now))
        self._changed.set()
        self._changed = asyncio.Event()

    async def update(self, seconds: float) -> None:
        """Work for so long, longer while engines sample."""
        self._set_updating(True)
        loop = asyncio.get_running_loop()
        began = loop.time()
        while seconds > 1e-9:
            speed, since = self._costs.update_speed if self._busy else 1.0, loop.time()
            if speed == 1.0 == self._costs.update_speed:
                await asyncio.sleep(seconds)
            else:
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._changed.wait(), seconds / speed)
            seconds -= (loop.time() - since) * speed
        self._set_updating(False)
        self.updating.append((began, loop.time()))

    def _set_updating(self, updating: bool) -> None:
        for engine in self.engines:
            engine.advance()
        self._updating = updating
        for engine in self.engines:
            engine.plan()


class Engine:
    """Decodes one token of every running reply in each step; replies beyond the slots wait in order of
    arrival.
    """

    def __init__(self, costs: Costs, devices: Devices) -> None:
        self._costs, self._devices = costs, devices
        self._loop = asyncio.get_running_loop()
        self._free = list(range(costs.slots))
        self._used: set[int] = set()
        self._running: list[
            tuple[float, int, asyncio.Future[None]]
        ] = []  # by the decode step after which the reply ends
        self._began: dict[int, float] = {}  # decode step at the beginning of the reply in a slot
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._steps, self._stall, self._at = 0.0, 0.0, self._loop.time()
        self._step_s, self._cached = costs.decode_s, 0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def load(self) -> int:
        """Number of open replies."""
        return len(self._running) + len(self._waiting)

    @property
    def running(self) -> int:
        """Number of replies that have a slot."""
        return len(self._running)

    def generate(self, tokens: int) -> asyncio.Future[None]:
        """Return a future of a reply of this length."""
        future: asyncio.Future[None] = self._loop.create_future()
        self.advance()
        self._waiting.append((tokens, future))
        self._admit()
        self.plan()
        return future

    def stall(self, seconds: float) -> None:
        """Do not decode for so long."""
        self.advance()
        self._stall += seconds
        self.plan()

    def advance(self) -> None:
        """Decode up to the present time."""
        worked = (self._loop.time() - self._at) * self._devices.engine_speed
        self._at = self._loop.time()
        stalled = min(worked, self._stall)
        self._stall -= stalled
        if self._running:
            self._steps += (worked - stalled) / self._step_s

    def plan(self) -> None:
        """Set the timer to the end of the next reply."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        if self._running:
            steps = self._running[0][0] - self._steps
            if self._costs.cache_s:
                steps = min(steps, self._cached - self._length)
            work = self._stall + max(steps, 0.0) * self._step_s
            self._timer = self._loop.call_later(work / self._devices.engine_speed, self._end_replies)

    @property
    def _length(self) -> float:
        """Tokens of the longest prompt and reply in a slot."""
        return self._costs.prompt_tokens + self._steps - min(self._began.values(), default=self._steps)

    def _admit(self) -> None:
        idle = not self._running
        while self._waiting and self._free:
            tokens, future = self._waiting.popleft()
            slot = heapq.heappop(self._free)
            self._used.add(slot)
            self._stall += self._costs.call_s
            self._began[slot] = self._steps
            heapq.heappush(self._running, (self._steps + tokens, slot, future))
        if idle and self._running:
            self._devices.add_busy(1)
        rows = -(-(max(self._used, default=0) + 1) // ROW_BLOCK) * ROW_BLOCK
        self._cached = (
            (math.floor((self._length + TICK_STEPS) / CACHE_BLOCK) + 1) * CACHE_BLOCK
            if self._costs.cache_s
            else 0
        )
        self._step_s = self._costs.decode_s + rows * (self._costs.row_s + self._costs.cache_s * self._cached)

    def _end_replies(self) -> None:
        self.advance()
        while self._running and (self._running[0][0] - self._steps) * self._step_s <= TICK_S:
            _, slot, future = heapq.heappop(self._running)
            self._used.remove(slot)
            del self._began[slot]
            heapq.heappush(self._free, slot)
            if not future.done():
                future.set_result(None)
        if not self._running:
            self._devices.add_busy(-1)
        self._admit()
        self.plan()


@dataclass
class _Flight:
    """A group in flight or ready; `oldest` is the version of the weights that it started with."""

    number: int
    oldest: int
    tokens: int
    ready: bool = False


class Run:
    """One simulated run of a policy with `tasks` groups a step."""

    def __init__(self, costs: Costs, schedule: Schedule, groups: Iterator[Group], tasks: int) -> None:
        self._costs, self._schedule, self._groups, self._tasks = costs, schedule, groups, tasks
        self._devices = Devices(costs)
        self._engines = self._devices.engines = [Engine(costs, self._devices) for _ in range(costs.engines)]
        self._version = 0
        self._admitted = 0
        self._outstanding: list[_Flight] = []
        self._started: set[asyncio.Task[_Flight]] = set()
        self._changed = asyncio.Event()
        self.report = Report(sampling=self._devices.sampling, updating=self._devices.updating)

    async def play(self, steps: int) -> Report:
        """Run so many steps."""
        await {"sync": self._sync, "one_step_off": self._one_step_off, "fully_async": self._fully_async}[
            self._schedule.mode
        ](steps)
        return self.report

    async def _sync(self, steps: int) -> None:
        for step in range(1, steps + 1):
            await self._train(await self._batch(), step)

    async def _one_step_off(self, steps: int) -> None:
        batch = await self._batch()
        for step in range(1, steps + 1):
            following = asyncio.create_task(self._batch())
            await self._train(batch, step, publish=False)
            batch = await following
            await self._publish(step)

    async def _fully_async(self, steps: int) -> None:
        self._admit()
        for step in range(1, steps + 1):
            while (batch := self._take(step)) is None:
                await self._changed.wait()
            await self._train(batch, step, publish=step % self._schedule.trigger == 0)

    async def _batch(self) -> list[_Flight]:
        return await asyncio.gather(
            *[self._group(_Flight(0, self._version, 0), next(self._groups)) for _ in range(self._tasks)]
        )

    async def _group(self, flight: _Flight, group: Group) -> _Flight:
        flight.tokens = sum(tokens + self._costs.prompt_tokens for episode in group for tokens, _ in episode)
        await asyncio.gather(*[self._episode(episode) for episode in group])
        flight.ready = True
        self._notify()
        return flight

    async def _episode(self, episode: Episode) -> None:
        for tokens, wait_s in episode:
            await min(self._engines, key=lambda engine: engine.load).generate(tokens)
            if wait_s:
                await asyncio.sleep(wait_s)

    async def _train(self, batch: Sequence[_Flight], step: int, publish: bool = True) -> None:
        costs, tokens = self._costs, sum(flight.tokens for flight in batch)
        per_token = costs.update_token_s + (costs.log_prob_token_s if self._schedule.mode != "sync" else 0.0)
        await self._devices.update(costs.rest_s + costs.update_s + per_token * tokens)
        self.report.updated.append(asyncio.get_running_loop().time())
        self.report.staleness.append(max(step - 1 - flight.oldest for flight in batch))
        if publish:
            await self._publish(step)

    async def _publish(self, step: int) -> None:
        for (
            engine
        ) in self._engines:  # replies go on with new weights, for which their keys are computed again
            engine.stall(self._costs.sync_s + self._costs.call_s * engine.running)
        await asyncio.sleep(self._costs.sync_s)
        self._version = step
        self._admit()
        self._notify()

    def _admit(self) -> None:
        """Start as many groups as `floor((1 + tau) * M * B) + v * B - admitted` allows."""
        if self._schedule.mode != "fully_async":
            return
        limit = (
            int((1 + self._schedule.staleness) * self._schedule.trigger * self._tasks)
            + self._version * self._tasks
        )
        for number in range(self._admitted, limit):
            flight = _Flight(number, self._version, 0)
            self._outstanding.append(flight)
            task = asyncio.create_task(self._group(flight, next(self._groups)))
            self._started.add(task)  # without a reference a task may be collected
            task.add_done_callback(self._started.discard)
        self._admitted = max(self._admitted, limit)

    def _take(self, step: int) -> list[_Flight] | None:
        """Return the groups of a step, earliest deadline first; None while later steps could not take the
        others in time.
        """
        bound, size = self._schedule.off_policy, self._tasks
        ready = sorted(
            (flight for flight in self._outstanding if flight.ready),
            key=lambda flight: (flight.oldest, flight.number),
        )
        batch = ready[:size]
        taken = {flight.number for flight in batch}
        left = [flight for flight in self._outstanding if flight.number not in taken]
        due = [flight.oldest + bound for flight in left]
        if len(batch) < size or any(
            sum(other <= d for other in due) > (d - step + 1) * size for d in set(due)
        ):
            return None
        self._outstanding = left
        return batch

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


def run_steps(costs: Costs, schedule: Schedule, groups: Iterator[Group], tasks: int, steps: int) -> Report:
    """Simulate a run of so many steps."""

    async def main() -> Report:
        return await Run(costs, schedule, groups, tasks).play(steps)

    return simulate(main())
