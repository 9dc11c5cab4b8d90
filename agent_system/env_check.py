"""A conformance test for environments: `agent_system.testing.check_env`."""

from __future__ import annotations

import asyncio
import math
import pickle
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import zip_longest
from typing import Any

from agent_system.env_caller import EnvCaller
from agent_system.environment import BaseEnv, Observation, Outcome, Task
from agent_system.errors import AgentSystemError
from agent_system.record import finite, plain

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
    """Play `actions` in an environment repeatedly and check that the outcomes depend on the seed
    only. Call it outside an event loop.

    - The same seed gives the same observations, rewards and info: in a second object, and in the
      first one after another `reset`.
    - A fork (when the class has `fork`) taken before any action is of the same class and plays the
      remaining actions like its origin,
      whichever of the two plays first. A fork that plays them in another order (reversed except for
      the last one, up to an error) behaves like a separate object that plays that order.
    - A pickled copy taken before any action gives the same outcomes for the remaining actions.
    - `score` (when the class has it) changes nothing.
    - Rewards are finite and inside their ranges; `done`, `info` and observations have their types.

    Args:
        env_factory: makes the environment for a seed, such as `EnvFactory(MyEnv).make`.
        task: the task to play.
        actions: a pair `(agent_id, action)` of texts goes to `act`, anything else to `step`; play
            ends with the first `done`. Include an illegal action and one that ends the episode.
        team_range, local_range: lowest and highest reward of one `act`, `step` or `score`.

    Raises:
        AgentSystemError: naming what was found, and after which action.
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
        self.factory = factory
        self.task = task
        self.actions = actions
        self.ranges = {"team": team_range, "local": local_range}
        self.threads = threads
        self.agents = list(dict.fromkeys(a[0] for a in actions if _is_act(a)))
        self.name = ""

    async def run(self) -> None:
        first = await self._new()
        self.name = type(first.env).__name__
        expected = await self._play_from_reset(first)
        self._check_equal(expected, await self._play_from_reset(first), "after another reset")
        await first.close(CLOSE_TIMEOUT_S)
        second = await self._new()
        self._check_equal(
            expected, await self._play_from_reset(second), "in another object with the same seed"
        )
        await second.close(CLOSE_TIMEOUT_S)
        if second.has_score:
            scored = await self._new()
            trace = await self._play_from_reset(scored, score=True)
            self._check_equal(
                expected, trace, "with score() called after every act (score must change nothing)"
            )
            await scored.close(CLOSE_TIMEOUT_S)
        for start in range(len(expected) - 1):
            await self._check_copies(start, expected)

    async def _check_copies(self, start: int, expected: Trace) -> None:
        """Fork and pickle before action `start`, and play every copy to the end."""
        origin = await self._advanced_to(start)
        rest = expected[start + 1 :]
        where = f"when copied before action {start}"
        early = late = second = reordered = None
        if origin.env.overrides("fork"):
            early = await origin.fork()
            late = await origin.fork()
            if type(early.env) is not type(origin.env):
                raise AgentSystemError(
                    f"{self.name}.fork() returned a {type(early.env).__name__}; make the copy with "
                    "type(self)(...)"
                )
            second = await early.fork()
            reordered = await origin.fork()
            self._check_equal(rest, await self._play(early, start), f"in a fork, {where}", start)
        copy = EnvCaller(self._pickled(origin.env, start), self.threads)
        self._check_equal(rest, await self._play(copy, start), f"in a pickled copy, {where}", start)
        self._check_equal(
            rest,
            await self._play(origin, start),
            f"in the origin after its copies had been played, {where}",
            start,
        )
        if late is not None and second is not None:
            self._check_equal(
                rest, await self._play(late, start), f"in a fork played after its origin, {where}", start
            )
            self._check_equal(rest, await self._play(second, start), f"in a fork of a fork, {where}", start)
        if reordered is not None:
            alone = await self._advanced_to(start)
            order = [*self.actions[start : start + len(rest) - 1][::-1], self.actions[start + len(rest) - 1]]
            self._check_independent(
                await self._play_reordered(alone, order), await self._play_reordered(reordered, order), start
            )
            await alone.close(CLOSE_TIMEOUT_S)
        for env in (early, late, second, reordered, copy, origin):
            if env is not None:
                await env.close(CLOSE_TIMEOUT_S)

    async def _new(self) -> EnvCaller:
        env = self.factory(SEED)
        if not isinstance(env, BaseEnv):
            raise AgentSystemError(f"env_factory(seed) must return a BaseEnv, found {type(env).__name__}")
        return EnvCaller(env, self.threads)

    async def _advanced_to(self, start: int) -> EnvCaller:
        """Return a new environment in which the actions before `start` have been played."""
        env = await self._new()
        await env.observation("reset", self.task)
        await self._play(env, 0, start)
        return env

    async def _play_from_reset(self, env: EnvCaller, score: bool = False) -> Trace:
        observation = await env.observation("reset", self.task)
        return [
            [self._plain_observation(observation), await self._agent_views(env)],
            *await self._play(env, 0, score=score),
        ]

    async def _play(self, env: EnvCaller, start: int, stop: int | None = None, score: bool = False) -> Trace:
        trace: Trace = []
        for number, action in enumerate(self.actions[start:stop], start):
            call = _call_of(action)
            outcome = await env.outcome(*call)
            self._check_outcome(outcome, f"{self.name}.{call[0]}() after action {number}, {action!r},")
            if score and _is_act(action):
                self._check_outcome(
                    await env.outcome("score", *action),
                    f"{self.name}.score() after action {number}, {action!r},",
                )
            trace.append(await self._plain_outcome(env, outcome))
            if outcome.done:
                break
        return trace

    async def _play_reordered(self, env: EnvCaller, order: Sequence[Any]) -> Trace:
        """Play the actions in another order; an error ends play, because an environment may require
        its own order.
        """
        trace: Trace = []
        for action in order:
            try:
                outcome = await env.outcome(*_call_of(action))
                trace.append(await self._plain_outcome(env, outcome))
            except Exception as error:
                trace.append(type(error).__name__)
                break
            if outcome.done:
                break
        return trace

    async def _plain_outcome(self, env: EnvCaller, outcome: Outcome) -> Trace:
        observation = None if outcome.observation is None else self._plain_observation(outcome.observation)
        return [
            outcome.team,
            plain(outcome.local),
            outcome.done,
            plain(outcome.info),
            observation,
            await self._agent_views(env),
        ]

    async def _agent_views(self, env: EnvCaller) -> Any:
        return (
            [self._plain_observation(await env.observation("observe", agent)) for agent in self.agents]
            if env.has_observe
            else None
        )

    def _plain_observation(self, observation: Observation) -> Any:
        if not isinstance(observation.text, str) or not isinstance(observation.info, Mapping):
            raise AgentSystemError(
                f"{self.name}: Observation(text: str, info: mapping) expected, found {observation!r:.200}"
            )
        return [observation.text, plain(observation.info)]

    def _check_outcome(self, outcome: Outcome, where: str) -> None:
        if not isinstance(outcome.done, bool) or not isinstance(outcome.info, Mapping):
            raise AgentSystemError(
                f"{where} gave done={outcome.done!r} and info={outcome.info!r:.100}; expected a "
                "bool and a mapping"
            )
        local = (
            outcome.local.values()
            if isinstance(outcome.local, Mapping)
            else []
            if outcome.local is None
            else [outcome.local]
        )
        for name, values in (("team", [outcome.team]), ("local", local)):
            low, high = self.ranges[name]
            for value in values:
                if not low <= finite(value, name, where) <= high:
                    raise AgentSystemError(f"{where} gave {name}={value!r}; expected {low:g} to {high:g}")

    def _pickled(self, env: BaseEnv, start: int) -> BaseEnv:
        try:
            return pickle.loads(pickle.dumps(env))
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise AgentSystemError(
                f"{self.name} cannot be pickled before action {start}: {error}; keep no open handles in it"
            ) from error

    def _check_independent(self, alone: Trace, fork: Trace, start: int) -> None:
        for one, other in zip_longest(alone, fork):
            if one != other:
                raise AgentSystemError(
                    f"{self.name}: a fork taken before action {start} that played the remaining "
                    "actions in reverse, after other forks had played them, differs from a "
                    f"separate object that played the same: expected {one!r:.300}, found "
                    f"{other!r:.300}; a fork must share no mutable state"
                )

    def _check_equal(self, expected: Trace, actual: Trace, where: str, start: int = -1) -> None:
        for number, (one, other) in enumerate(zip(expected, actual, strict=False), start):
            if one != other:
                what = "reset" if number < 0 else f"action {number}, {self.actions[number]!r},"
                raise AgentSystemError(
                    f"{self.name}: {what} had another outcome {where}: expected {one!r:.300}, "
                    f"found {other!r:.300}"
                )
        if len(expected) != len(actual):
            raise AgentSystemError(
                f"{self.name}: the episode had another length {where}: {len(expected)} outcomes "
                f"expected, found {len(actual)}"
            )


def _call_of(action: Any) -> tuple[Any, ...]:
    return ("act", *action) if _is_act(action) else ("step", action)


def _is_act(action: Any) -> bool:
    return isinstance(action, tuple) and len(action) == 2 and all(isinstance(part, str) for part in action)
