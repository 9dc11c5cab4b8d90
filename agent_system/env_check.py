"""A conformance test for environments that users run on their own: `agent_system.testing.check_env`."""

from __future__ import annotations

import asyncio
import math
import pickle
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import zip_longest
from typing import Any

from agent_system.environment import BaseEnv, Observation, Outcome, Task
from agent_system.errors import AgentSystemError
from agent_system.record import plain
from agent_system.rollout.env_caller import EnvCaller
from agent_system.rollout.ledger import finite

CLOSE_TIMEOUT_S = 30.0
SEED = 7
Trace = list[Any]


def check_env(
    env_factory: Callable[[int], BaseEnv],
    task: Task,
    actions: Sequence[Any],
    *,
    team_range: tuple[float, float] = (-math.inf, math.inf),
    local_range: tuple[float, float] = (-math.inf, math.inf),
) -> None:
    """Play `actions` in an environment again and again, and see that nothing but the seed decides what comes of them.

    - The same seed gives the same observations, rewards and info: in a second object, and in the first one after another `reset`.
    - A fork (when the class has `fork`) taken before any action is of the same class and plays the rest as its origin does, whichever of
      the two plays first; one that goes another way (the rest backwards, but for the last action, up to an error) goes it as an object of
      its own would.
    - A pickled copy taken before any action plays the rest alike.
    - `score` (when the class has it) changes nothing.
    - Rewards are finite and inside their ranges; `done`, `info` and observations have their types.

    Args:
        env_factory: makes the environment for a seed, such as `EnvFactory(MyEnv).make`.
        task: what is played.
        actions: a pair `(agent_id, action)` of texts goes to `act`, anything else to `step`; play ends with the first `done`. Include an
            illegal action and one that ends the episode.
        team_range, local_range: lowest and highest reward of one `act`, `step` or `score`.

    Raises:
        AgentSystemError: naming what was found, and after which action. Must not be called in a running event loop.
    """
    with ThreadPoolExecutor(1) as threads:
        asyncio.run(_Check(env_factory, task, list(actions), team_range, local_range, threads).run())


class _Check:
    def __init__(
        self,
        factory: Callable[[int], BaseEnv],
        task: Task,
        actions: list[Any],
        team_range: tuple[float, float],
        local_range: tuple[float, float],
        threads: ThreadPoolExecutor,
    ) -> None:
        self.factory, self.task, self.actions = factory, task, actions
        self.ranges = {"team": team_range, "local": local_range}
        self.threads = threads
        self.agents = list(dict.fromkeys(a[0] for a in actions if _is_act(a)))
        self.name = ""

    async def run(self) -> None:
        first = await self._new()
        self.name = type(first.env).__name__
        expected = await self._whole(first)
        self._same(expected, await self._whole(first), "after another reset")
        await first.close(CLOSE_TIMEOUT_S)
        second = await self._new()
        self._same(expected, await self._whole(second), "in another object with the same seed")
        await second.close(CLOSE_TIMEOUT_S)
        if second.has_score:
            scored = await self._new()
            self._same(expected, await self._whole(scored, score=True), "with score() called after every act (score must change nothing)")
            await scored.close(CLOSE_TIMEOUT_S)
        for start in range(len(expected) - 1):
            await self._copies(start, expected)

    async def _copies(self, start: int, expected: Trace) -> None:
        """Fork and pickle before action `start`, and play every copy to the end."""
        origin = await self._at(start)
        rest, where = expected[start + 1 :], f"when copied before action {start}"
        early = late = second = stray = None
        if origin.env.overrides("fork"):
            early, late = await origin.fork(), await origin.fork()
            if type(early.env) is not type(origin.env):
                raise AgentSystemError(f"{self.name}.fork() returned a {type(early.env).__name__}; make the copy with type(self)(...)")
            second = await early.fork()
            stray = await origin.fork()
            self._same(rest, await self._play(early, start), f"in a fork, {where}", start)
        copy = EnvCaller(self._pickled(origin.env, start), self.threads)
        self._same(rest, await self._play(copy, start), f"in a pickled copy, {where}", start)
        self._same(rest, await self._play(origin, start), f"in the origin after its copies had been played, {where}", start)
        if late is not None and second is not None:
            self._same(rest, await self._play(late, start), f"in a fork played after its origin, {where}", start)
            self._same(rest, await self._play(second, start), f"in a fork of a fork, {where}", start)
        if stray is not None:
            alone = await self._at(start)
            order = [*self.actions[start : start + len(rest) - 1][::-1], self.actions[start + len(rest) - 1]]
            self._apart(await self._astray(alone, order), await self._astray(stray, order), start)
            await alone.close(CLOSE_TIMEOUT_S)
        for env in (early, late, second, stray, copy, origin):
            if env is not None:
                await env.close(CLOSE_TIMEOUT_S)

    async def _new(self) -> EnvCaller:
        env = self.factory(SEED)
        if not isinstance(env, BaseEnv):
            raise AgentSystemError(f"env_factory(seed) must return a BaseEnv, found {type(env).__name__}")
        return EnvCaller(env, self.threads)

    async def _at(self, start: int) -> EnvCaller:
        """Return a new environment in which the actions before `start` have been played."""
        env = await self._new()
        await env.observation("reset", self.task)
        await self._play(env, 0, start)
        return env

    async def _whole(self, env: EnvCaller, score: bool = False) -> Trace:
        observation = await env.observation("reset", self.task)
        return [[self._shown(observation), await self._seen(env)], *await self._play(env, 0, score=score)]

    async def _play(self, env: EnvCaller, start: int, stop: int | None = None, score: bool = False) -> Trace:
        trace: Trace = []
        for number, action in enumerate(self.actions[start:stop], start):
            call = _call_of(action)
            outcome = await env.outcome(*call)
            self._valid(outcome, f"{self.name}.{call[0]}() after action {number}, {action!r},")
            if score and _is_act(action):
                self._valid(await env.outcome("score", *action), f"{self.name}.score() after action {number}, {action!r},")
            trace.append(await self._told(env, outcome))
            if outcome.done:
                break
        return trace

    async def _astray(self, env: EnvCaller, order: Sequence[Any]) -> Trace:
        """Play the actions in another order; an error ends it, since an environment may ask for one."""
        trace: Trace = []
        for action in order:
            try:
                outcome = await env.outcome(*_call_of(action))
                trace.append(await self._told(env, outcome))
            except Exception as error:
                trace.append(type(error).__name__)
                break
            if outcome.done:
                break
        return trace

    async def _told(self, env: EnvCaller, outcome: Outcome) -> Trace:
        shown = None if outcome.observation is None else self._shown(outcome.observation)
        return [outcome.team, plain(outcome.local), outcome.done, plain(outcome.info), shown, await self._seen(env)]

    async def _seen(self, env: EnvCaller) -> Any:
        return [self._shown(await env.observation("observe", agent)) for agent in self.agents] if env.has_observe else None

    def _shown(self, observation: Observation) -> Any:
        if not isinstance(observation.text, str) or not isinstance(observation.info, Mapping):
            raise AgentSystemError(f"{self.name}: Observation(text: str, info: mapping) expected, found {observation!r:.200}")
        return [observation.text, plain(observation.info)]

    def _valid(self, outcome: Outcome, where: str) -> None:
        if not isinstance(outcome.done, bool) or not isinstance(outcome.info, Mapping):
            raise AgentSystemError(f"{where} gave done={outcome.done!r} and info={outcome.info!r:.100}; expected a bool and a mapping")
        local = outcome.local.values() if isinstance(outcome.local, Mapping) else [] if outcome.local is None else [outcome.local]
        for name, values in (("team", [outcome.team]), ("local", local)):
            low, high = self.ranges[name]
            for value in values:
                if not low <= finite(value, name, where) <= high:
                    raise AgentSystemError(f"{where} gave {name}={value!r}; expected {low:g} to {high:g}")

    def _pickled(self, env: BaseEnv, start: int) -> BaseEnv:
        try:
            return pickle.loads(pickle.dumps(env))
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise AgentSystemError(f"{self.name} cannot be pickled before action {start}: {error}; keep no open handles in it") from error

    def _apart(self, alone: Trace, stray: Trace, start: int) -> None:
        for one, other in zip_longest(alone, stray):
            if one != other:
                raise AgentSystemError(
                    f"{self.name}: a fork taken before action {start} that played the actions from there backwards, after other forks had "
                    f"played them, came to something else than an object of its own: expected {one!r:.300}, found {other!r:.300}; "
                    "a fork must share nothing that changes"
                )

    def _same(self, expected: Trace, found: Trace, where: str, start: int = -1) -> None:
        for number, (one, other) in enumerate(zip(expected, found, strict=False), start):
            if one != other:
                what = "reset" if number < 0 else f"action {number}, {self.actions[number]!r},"
                raise AgentSystemError(f"{self.name}: {what} led to something else {where}: expected {one!r:.300}, found {other!r:.300}")
        if len(expected) != len(found):
            raise AgentSystemError(
                f"{self.name}: the episode ended elsewhere {where}: {len(expected)} outcomes expected, found {len(found)}"
            )


def _call_of(action: Any) -> tuple[Any, ...]:
    return ("act", *action) if _is_act(action) else ("step", action)


def _is_act(action: Any) -> bool:
    return isinstance(action, tuple) and len(action) == 2 and all(isinstance(part, str) for part in action)
