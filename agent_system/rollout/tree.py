"""Tree sampling (AT-GRPO, arXiv 2510.11062): K replies per call, each tried on a fork of the environment; the
episode continues with one.

K may differ by agent; it is 1 for agents that are not trained, unless `rollout.tree.k_per_agent` says
otherwise.

A candidate's reward is `alpha * team + local`, from the rewards of `act` on its own fork, of `score` if the
environment has it, and of a reward model (`reward.model.scope=call`), which scores every candidate in its
context before one is chosen. With `rollout.tree.returns=committed` the committed candidate has the rewards of
the episode instead, and this one for the comparison only. Concurrent calls form one `SimultaneousCalls`: the
candidates of all of them are tried on forks of the state before any of them, and none continues before all
choices are made. A single call commits its fork; of several calls, the chosen actions are applied to the
environment in call order.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from agent_system.env_caller import EnvHandle
from agent_system.env_workers.messages import EnvWorkerError
from agent_system.environment import BaseEnv, Outcome
from agent_system.errors import AgentSystemError
from agent_system.record import finite
from agent_system.reward.mixing import mix
from agent_system.rollout.call import Call
from agent_system.rollout.candidate import Candidate, CandidateSet, choose
from agent_system.rollout.forks import Forks
from agent_system.rollout.seeds import stable_seed
from agent_system.rollout.simultaneous import SimultaneousCalls
from agent_system.turn import Turn
from verl.protocol.generate import EngineGoneError, Generation
from verl.trainer.config.reward import RewardConfig
from verl.trainer.config.reward_model import TERM
from verl.trainer.config.run import TreeConfig

if TYPE_CHECKING:
    from agent_system.reward.model import ReplyScorer

logger = logging.getLogger(__name__)


class Tree:
    """The candidates of one episode's calls.

    Attributes:
        settings: the keys under `rollout.tree`.
        left_out: number of candidates that could not be sampled or scored, by cause.
    """

    def __init__(
        self, settings: TreeConfig, alpha: float, forks: Forks, model: ReplyScorer | None = None
    ) -> None:
        self.settings = settings
        self.left_out: Counter[str] = Counter()
        self._alpha = alpha
        self._forks = forks
        self._model = model
        self._open: SimultaneousCalls | None = None

    async def ready(self) -> None:
        """Wait while choices are being committed. Raise the error of a failed commit: the state is then
        unknown.
        """
        while self._open is not None and self._open.settled:
            await self._finish(self._open)

    async def idle(self) -> None:
        """Wait until no call runs. Raise as `ready` does."""
        while self._open is not None:
            await self._finish(self._open)

    def enter(
        self, turn: Turn, start: Callable[[SimultaneousCalls], asyncio.Task[None]]
    ) -> SimultaneousCalls:
        """Return the simultaneous calls that a call starting now belongs to; `start` commits the choices of a
        new one.
        """
        self._open = self._open or SimultaneousCalls(turn, start)
        return self._open

    async def grow(
        self,
        call: Call,
        replies: Sequence[Generation | None],
        origin: EnvHandle,
        greedy: Generation | None = None,
    ) -> CandidateSet:
        """Try every reply, and a greedy one, on a fork of `origin`, concurrently, and choose one of
        `replies`.

        Raises AgentSystemError with the first cause when no candidate could be scored, EnvWorkerError or
        EngineGoneError when the environment's worker, or the reward model's engine, died.
        """
        numbered = [(number, reply) for number, reply in enumerate(replies) if reply is not None]
        self.left_out[f"a reply of {call.agent_id} was aborted"] += len(replies) - len(numbered)
        numbered += [] if greedy is None else [(len(replies), greedy)]
        results = await asyncio.gather(
            *(self._try(call, n, reply, origin) for n, reply in numbered), return_exceptions=True
        )
        if fatal_error := next(
            (result for result in results if isinstance(result, (EnvWorkerError, EngineGoneError))), None
        ):
            raise fatal_error  # the state that the episode would continue from, or all later scores
        candidates = []
        causes = []
        for (number, _), result in zip(numbered, results, strict=True):
            if isinstance(result, BaseException):
                causes.append(result)
                self.left_out[f"{type(result).__name__}: {result}"] += 1
                logger.warning(
                    "candidate %d of %s in turn %d of %s left out: %s: %s",
                    number, call.agent_id, call.turn, call.spec.traj_uid, type(result).__name__, result,
                )  # fmt: skip
            else:
                candidates.append(result)
        baseline = candidates.pop() if candidates and candidates[-1].number == len(replies) else None
        if not candidates:
            raise AgentSystemError(
                f"none of the {len(replies)} candidates of {call.agent_id} in turn {call.turn} could be "
                f"scored: {type(causes[0]).__name__}: {causes[0]}"
            ) from causes[0]
        rewards = [mix(c.team, c.local, self._alpha) for c in candidates]
        winner = candidates[choose(self.settings, rewards, stable_seed(call.seed, "choice"))]
        return CandidateSet(call, candidates, winner, baseline)

    async def _finish(self, calls: SimultaneousCalls) -> None:
        await calls.over()
        if calls.failure is not None:
            raise calls.failure
        if self._open is calls:
            self._open = None

    async def _try(self, call: Call, number: int, generation: Generation, origin: EnvHandle) -> Candidate:
        env = await self._forks.make(origin)
        reply = call.read(generation)
        action = reply.projection.action
        role = call.runtime.agent.acts_as or call.agent_id
        outcome = await env.outcome("act", role, action) if env.has_act else Outcome()
        more = await env.outcome("score", role, action) if env.has_score else Outcome()
        where = (
            f"{env.name}, candidate {number} of call {call.number} of {call.agent_id} in turn {call.turn},"
        )
        team = finite(outcome.team, "team", where) + finite(more.team, "team", where)
        local = sum(_local(o, call, where) for o in (outcome, more))
        if self._model is None or not self._model.takes(call.agent_id):
            return Candidate(number, reply, env, outcome, team, local, {})
        score = await self._model.of_reply(call.prompt.messages, reply.text, call.spec.task)
        return Candidate(number, reply, env, outcome, team, self._model.combined(local, score), {TERM: score})


def check_tree_env(env: type[BaseEnv], reward: RewardConfig | None = None) -> None:
    """Raise AgentSystemError for an environment in which candidates cannot be tried, or compared by its
    rewards or a reward model's.
    """
    if not env.overrides("fork"):
        raise AgentSystemError(
            f"rollout.sampling=tree tries candidates on forks, but {env.__name__} has no fork(); "
            "define it, or use rollout.sampling=parallel"
        )
    by_model = reward is not None and reward.model.kind is not None
    if not (by_model or env.overrides("act") or env.overrides("score")):
        raise AgentSystemError(
            "rollout.sampling=tree compares candidates by the rewards of act() or score(), but "
            f"{env.__name__} has neither (rewards of step() come too late); define one of them, set "
            "reward.model, or use rollout.sampling=parallel"
        )


def _local(outcome: Outcome, call: Call, where: str) -> float:
    if outcome.local is None:
        return 0.0
    if not isinstance(outcome.local, Mapping):
        return finite(outcome.local, "local", where)
    return sum(
        finite(value, "local", where)
        for key, value in outcome.local.items()
        if key in (call.number, call.runtime.agent.acts_as or call.agent_id)
    )
