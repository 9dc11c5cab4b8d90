"""Tree sampling (AT-GRPO, arXiv 2510.11062): K replies a call, each tried on a fork of the environment; the episode goes on with one.

A candidate's reward is `alpha * team + local` of what its own fork was paid by `act`, and by `score` where the environment has one.
Calls that run at the same time form a block: the candidates of all of them are tried on forks of the state before the block, and nobody
goes on before all are chosen. A call alone commits its fork; of several, the chosen actions are applied to the environment in call order.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from agent_system.environment import BaseEnv, Outcome
from agent_system.errors import AgentSystemError
from agent_system.reward.mixing import mix
from agent_system.rollout.call import Call, Reply
from agent_system.rollout.env_caller import EnvCaller
from agent_system.rollout.ledger import finite
from agent_system.rollout.seeds import stable_seed
from agent_system.rollout.settings import TreeSettings
from agent_system.turn import Turn
from verl.protocol.generate import Generation

logger = logging.getLogger(__name__)
CLOSE_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class Candidate:
    """A reply and what became of it on its own fork.

    Attributes:
        number: which of the call's K replies, from 0.
        reply: what was said.
        env: the fork, after `act`.
        outcome: of `act`.
        team, local: rewards of `act` and `score` together.
    """

    number: int
    reply: Reply
    env: EnvCaller
    outcome: Outcome
    team: float
    local: float


@dataclass(frozen=True, slots=True)
class Tried:
    """A call, its candidates that could be scored, and the chosen one."""

    call: Call
    candidates: Sequence[Candidate]
    winner: Candidate


class Block:
    """Calls of one turn that act on the same state.

    Attributes:
        turn: theirs.
        tried: those that did not fail, in call order once the block has settled.
    """

    def __init__(self, turn: Turn) -> None:
        self.turn = turn
        self.tried: list[Tried] = []
        self._resolution: asyncio.Task[None] | None = None
        self._running = 0
        self._settled = asyncio.Event()
        self._over = asyncio.Event()

    @property
    def settled(self) -> bool:
        """All its calls have been tried or have failed."""
        return self._settled.is_set()

    def enter(self) -> None:
        """One more call belongs to the block."""
        self._running += 1

    def leave(self, tried: Tried | None) -> None:
        """A call has been tried; None when it failed, so that the others need not wait for it."""
        self._running -= 1
        if tried is not None:
            self.tried.append(tried)
        if self._running == 0:
            self.tried.sort(key=lambda t: t.call.number)
            self._settled.set()
            if not self.tried:
                self.end()

    def end(self) -> None:
        """Its choices have been committed, or there are none."""
        self._over.set()

    async def over(self) -> None:
        """Wait for the end."""
        await self._over.wait()

    async def resolve(self, commit: Callable[[Block], Coroutine[Any, Any, None]]) -> None:
        """Wait for all calls, then have the choice committed once, whoever comes first."""
        await self._settled.wait()
        if self._resolution is None:
            self._resolution = asyncio.create_task(commit(self))
        await asyncio.shield(self._resolution)


class Tree:
    """The forks of one episode."""

    def __init__(self, settings: TreeSettings, alpha: float) -> None:
        self.settings = settings
        self.left_out = 0
        self._block: Block | None = None
        self._alpha = alpha
        self._forks: set[EnvCaller] = set()
        self._forking = asyncio.Lock()

    async def ready(self) -> None:
        """Wait while choices are being committed."""
        while self._block is not None and self._block.settled:
            await self._finish()

    async def idle(self) -> None:
        """Wait until no call runs."""
        while self._block is not None:
            await self._finish()

    def enter(self, turn: Turn) -> Block:
        """Return the block that a call starting now belongs to."""
        self._block = self._block or Block(turn)
        self._block.enter()
        return self._block

    async def grow(self, call: Call, replies: Sequence[Generation | None], world: EnvCaller) -> Tried:
        """Try every reply on a fork of `world`, all at the same time, and choose one.

        Raises AgentSystemError with the first cause when none could be scored.
        """
        numbered = [(number, reply) for number, reply in enumerate(replies) if reply is not None]
        results = await asyncio.gather(*(self._try(call, n, reply, world) for n, reply in numbered), return_exceptions=True)
        self.left_out += len(replies) - len(numbered)
        candidates, causes = [], []
        for (number, _), result in zip(numbered, results, strict=True):
            if isinstance(result, BaseException):
                causes.append(result)
                logger.warning(
                    "candidate %d of %s in turn %d of %s left out: %s: %s",
                    number, call.agent_id, call.turn, call.plan.traj_uid, type(result).__name__, result,
                )  # fmt: skip
            else:
                candidates.append(result)
        self.left_out += len(causes)
        if not candidates:
            raise AgentSystemError(
                f"none of the {len(replies)} candidates of {call.agent_id} in turn {call.turn} could be scored: "
                f"{type(causes[0]).__name__}: {causes[0]}"
            ) from causes[0]
        rewards = [mix(c.team, c.local, self._alpha) for c in candidates]
        return Tried(call, candidates, candidates[choose(self.settings, rewards, stable_seed(call.seed, "choice"))])

    def adopt(self, fork: EnvCaller, before: EnvCaller) -> EnvCaller:
        """Return `fork` as the environment of the episode, and drop the one it had before."""
        self._forks = self._forks - {fork} | {before}
        return fork

    async def prune(self) -> None:
        """Close everything but the environment of the episode; what cannot be closed is logged."""
        while self._forks:
            env = self._forks.pop()
            (failure,) = await asyncio.gather(env.close(CLOSE_TIMEOUT_S), return_exceptions=True)
            if failure is not None:
                logger.warning("%s.close() failed on a fork: %s: %s", type(env.env).__name__, type(failure).__name__, failure)

    async def _finish(self) -> None:
        block = self._block
        if block is not None:
            await block.over()
            if self._block is block:
                self._block = None

    async def _try(self, call: Call, number: int, generation: Generation, world: EnvCaller) -> Candidate:
        async with self._forking:  # an environment need not bear being copied twice at the same time
            env = await world.fork()
        self._forks.add(env)
        reply = call.read(generation)
        action = reply.projection.action
        outcome = await env.outcome("act", call.agent_id, action) if env.has_act else Outcome()
        more = await env.outcome("score", call.agent_id, action) if env.has_score else Outcome()
        where = f"{type(env.env).__name__}, candidate {number} of call {call.number} of {call.agent_id} in turn {call.turn},"
        team = finite(outcome.team, "team", where) + finite(more.team, "team", where)
        local = sum(_local(o, call, where) for o in (outcome, more))
        return Candidate(number, reply, env, outcome, team, local)


def choose(settings: TreeSettings, rewards: Sequence[float], seed: int) -> int:
    """Return which of the candidates is committed; `rewards` are theirs."""
    everyone = range(len(rewards))
    if settings.select == "first":
        return 0
    if settings.select == "greedy":
        return max(everyone, key=lambda i: rewards[i])
    if settings.select == "random":
        return Random(seed).randrange(len(rewards))
    best = max(rewards)
    return Random(seed).choices(everyone, [math.exp((r - best) / settings.temperature) for r in rewards])[0]


def check_tree_env(env: type[BaseEnv]) -> None:
    """Raise AgentSystemError for an environment in which candidates cannot be tried or compared."""
    if not env.overrides("fork"):
        raise AgentSystemError(
            f"rollout.sampling=tree tries candidates on forks, but {env.__name__} has no fork(); "
            "define it, or use rollout.sampling=parallel"
        )
    if not (env.overrides("act") or env.overrides("score")):
        raise AgentSystemError(
            f"rollout.sampling=tree compares candidates by what act() or score() pays, but {env.__name__} has neither (what step() pays "
            "comes too late); define one of them, or use rollout.sampling=parallel"
        )


def _local(outcome: Outcome, call: Call, where: str) -> float:
    if not isinstance(outcome.local, Mapping):
        return finite(outcome.local, "local", where)
    return sum(finite(value, "local", where) for key, value in outcome.local.items() if key in (call.number, call.agent_id))
