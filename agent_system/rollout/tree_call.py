"""Tree sampling (AT-GRPO, arXiv 2510.11062): K replies per call, each tried on a fork of the environment; the
episode continues with one.

K may differ by agent; it is 1 for agents that are not trained, unless `rollout.tree.k_per_agent` says
otherwise.

A candidate's reward is `alpha * team + local`, from the rewards of `act` on its own fork, of `score` if the
environment has it, and of a reward model (`reward.model.agents`), which scores every candidate in its
context before one is chosen. With `rollout.tree.returns=committed` the committed candidate has the rewards of
the episode instead, and this one for the comparison only. Concurrent calls form one `SimultaneousCalls`: the
candidates of all of them are tried on forks of the state before any of them, and none continues before all
choices are made. A single call commits its fork; of several calls, the chosen actions are applied to the
environment in call order.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import TYPE_CHECKING

from agent_system.env_caller import EnvHandle
from agent_system.env_workers.messages import EnvWorkerError
from agent_system.environment import BaseEnv, Outcome
from agent_system.errors import AgentSystemError
from agent_system.projection import Projection
from agent_system.record import Sample, finite
from agent_system.reward.mixing import mix
from agent_system.rollout.call import Call, Reply
from agent_system.rollout.episode import Episode
from agent_system.rollout.sampled_call import prompted_call
from agent_system.rollout.seeds import stable_seed
from agent_system.turn import CallContext, Turn, TurnOver
from verl.protocol.generate import EngineGoneError, Generation
from verl.trainer.config.reward import RewardConfig
from verl.trainer.config.reward_model import TERM
from verl.trainer.config.run import TreeConfig

if TYPE_CHECKING:
    from agent_system.reward.model import ReplyScorer

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A reply and its outcome on its own fork.

    Attributes:
        number: index among the call's K replies, from 0.
        reply: the reply.
        env: the fork, after `act`.
        outcome: outcome of `act`.
        team, local: summed rewards of `act` and `score`; `local` with that of a reward model.
        terms: scores of a reward model.
    """

    number: int
    reply: Reply
    env: EnvHandle
    outcome: Outcome
    team: float
    local: float
    terms: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class CandidateSet:
    """A call, its scored candidates, the chosen candidate, and the greedy reply that they are
    compared with, if there is one; `explored`: the choice was drawn by chance.
    """

    call: Call
    candidates: Sequence[Candidate]
    winner: Candidate
    greedy: Candidate | None = None
    explored: bool = False


class SimultaneousCalls:
    """Calls of one turn, in the order in which they entered; the order of their answers has no
    effect.

    Attributes:
        turn: the turn of the calls.
        commit: commits the choices; None while a call runs, so that others may enter.
        failure: why the choices could not be committed, or None.
        over: set when the choices are committed.
    """

    def __init__(self, turn: Turn, start: Callable[[SimultaneousCalls], asyncio.Task[None]]) -> None:
        """Start with no calls.

        Args:
            turn: the turn of the calls.
            start: called once, when every call has its candidates, has failed or was cancelled;
                starts the commit of what `take` returns.
        """
        self.turn = turn
        self.commit: asyncio.Task[None] | None = None
        self.failure: BaseException | None = None
        self.over = asyncio.Event()
        self._start = start
        self._entered = 0
        self._running = 0
        self._candidate_sets: dict[int, CandidateSet] = {}
        self._waiting: dict[int, asyncio.Future[None]] = {}

    def enter(self) -> int:
        """Add a call and return its place."""
        self._running += 1
        self._entered += 1
        return self._entered - 1

    def leave(self) -> None:
        """Remove a call that was cancelled or has finished."""
        self._running -= 1
        if self._running == 0:
            self.commit = self._start(self)
            self.commit.add_done_callback(self._end)

    async def settle(self, place: int, candidate_set: CandidateSet | None) -> None:
        """Register the candidates of a finished call (None: it failed) and wait until all choices
        are committed.

        Calls continue in the order of their places. A call that is cancelled before `take` is left
        out.

        Raises:
            BaseException: the error of a failed commit.
        """
        if candidate_set is not None:
            self._candidate_sets[place] = candidate_set
        self._waiting[place] = asyncio.get_running_loop().create_future()
        self.leave()
        try:
            await self._waiting[place]
        except asyncio.CancelledError:
            self._candidate_sets.pop(place, None)
            raise
        if candidate_set is not None and self.failure is not None:
            raise self.failure

    def take(self) -> list[CandidateSet]:
        """Return the candidates of the calls that did not fail, in call order, to be committed."""
        return [self._candidate_sets[place] for place in sorted(self._candidate_sets)]

    def _end(self, commit: asyncio.Task[None]) -> None:
        self.failure = asyncio.CancelledError() if commit.cancelled() else commit.exception()
        self.over.set()
        for place in sorted(self._waiting):
            if not self._waiting[place].done():
                self._waiting[place].set_result(None)


class TreeCalls:
    """The calls of an episode, each with several candidates."""

    def __init__(self, episode: Episode, keys: TreeConfig, model: ReplyScorer | None = None) -> None:
        """Begin without calls.

        Args:
            episode: the episode.
            keys: the keys under `rollout.tree`.
            model: scores every candidate; None: there is none.
        """
        self._episode = episode
        self._keys = keys
        self._model = model and model.stopping(episode.clock.stopped)
        self._open: SimultaneousCalls | None = None

    async def end_turn(self) -> None:
        """Wait until no call runs, and refuse later ones of the turn. Raise the error of a failed
        commit.
        """
        while self._open is not None:
            await self._finish(self._open)
        # the step changes the state on which candidates of this turn would be tried
        self._episode.turn = None

    async def sample(self, turn: Turn, agent_id: str, context: CallContext) -> Projection:
        """Call an agent: sample K replies, try each on a fork, and return the projection of a
        chosen one.
        """
        episode = self._episode
        # choices are being committed: the state of which the candidates need forks comes after that
        while self._open is not None and self._open.commit is not None:
            await self._finish(self._open)
        # `Turn.act` has looked at this before the commit, whose actions may end the episode
        if turn.done:
            raise TurnOver(
                f"{agent_id} was called while the environment ended the episode in turn {turn.step}"
            )
        if turn is not episode.turn:
            raise AgentSystemError(
                f"{agent_id} was called after turn {turn.step}; with rollout.sampling=tree a turn "
                "must await its calls"
            )
        self._open = self._open or SimultaneousCalls(
            turn, lambda calls: episode.tasks.start(self._commit(calls))
        )
        calls = self._open
        place = calls.enter()
        try:
            candidate_set = await self._candidates(turn, agent_id, context)
        except Exception:
            # the others go on without this call, which raises in its place among them: what the
            # team does next does not depend on when it failed
            await calls.settle(place, None)
            raise
        except BaseException:
            # a cancelled call ends at once, and the others do not wait for it
            calls.leave()
            raise
        await calls.settle(place, candidate_set)
        return candidate_set.winner.reply.projection

    async def _candidates(self, turn: Turn, agent_id: str, context: CallContext) -> CandidateSet:
        """Sample the replies of a call, and try each of them on a fork of the environment."""
        episode = self._episode
        settings = episode.settings
        call = await prompted_call(episode, turn, agent_id, context)
        k = settings.candidates(agent_id, call.runtime.binding.trained)
        replies = await call.generate(k, episode.clock)
        asks_greedy = agent_id in settings.greedy_baselines
        greedy = await call.greedy_reply(episode.clock) if asks_greedy else None
        episode.waiting_for = f"the environment's reaction to the candidates of {call.label}"
        return await self._compare(call, replies, greedy)

    async def _compare(
        self, call: Call, replies: Sequence[Generation | None], greedy: Generation | None
    ) -> CandidateSet:
        """Try every reply, and a greedy one, on a fork of the environment, concurrently, and choose
        one of `replies`.

        Raises AgentSystemError with the first cause when no candidate could be scored,
        EnvWorkerError or EngineGoneError when the environment's worker, or the reward model's
        engine, died.
        """
        episode = self._episode
        numbered = [(number, reply) for number, reply in enumerate(replies) if reply is not None]
        episode.left_out[f"a reply of {call.agent_id} was aborted"] += len(replies) - len(numbered)
        numbered += [] if greedy is None else [(len(replies), greedy)]
        results = await asyncio.gather(
            *(self._try(call, n, reply) for n, reply in numbered), return_exceptions=True
        )
        if fatal_error := next(
            (result for result in results if isinstance(result, (EnvWorkerError, EngineGoneError))), None
        ):
            # the state that the episode would continue from, or all later scores
            raise fatal_error
        candidates = [result for result in results if not isinstance(result, BaseException)]
        causes = [result for result in results if isinstance(result, BaseException)]
        for (number, _), result in zip(numbered, results, strict=True):
            if isinstance(result, BaseException):
                episode.left_out[f"{type(result).__name__}: {result}"] += 1
                logger.warning(
                    "candidate %d of %s in turn %d of %s left out: %s: %s",
                    number, call.agent_id, call.turn, call.spec.traj_uid, type(result).__name__, result,
                )  # fmt: skip
        baseline = candidates.pop() if candidates and candidates[-1].number == len(replies) else None
        if not candidates:
            raise AgentSystemError(
                f"none of the {len(replies)} candidates of {call.agent_id} in turn {call.turn} "
                f"could be scored: {type(causes[0]).__name__}: {causes[0]}"
            ) from causes[0]
        rewards = [mix(c.team, c.local, episode.settings.reward.alpha) for c in candidates]
        seed = stable_seed(call.seed, "choice")
        winner = candidates[choose(self._keys, rewards, seed)]
        return CandidateSet(call, candidates, winner, baseline, _explores(self._keys, Random(seed)))

    async def _try(self, call: Call, number: int, generation: Generation) -> Candidate:
        env = await self._episode.forks.make(self._episode.env)
        reply = call.read(generation)
        action = reply.projection.action
        role = call.runtime.role
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

    async def _finish(self, calls: SimultaneousCalls) -> None:
        """Wait for the commit of calls. Raise its error: the state is then unknown."""
        await calls.over.wait()
        if calls.failure is not None:
            raise calls.failure
        # another one that waited may have begun new calls by now
        if self._open is calls:
            self._open = None

    async def _commit(self, calls: SimultaneousCalls) -> None:
        """Go on with the chosen candidates of simultaneous calls."""
        episode = self._episode
        turn = calls.turn
        candidate_sets = calls.take()
        for candidate_set in candidate_sets:
            episode.refuse_late(candidate_set.call)
            self._keep(candidate_set, turn)
        if len(candidate_sets) == 1:
            # the fork of the winner is the state after its action, and nothing else has happened
            # meanwhile
            winner = candidate_sets[0].winner
            episode.env = episode.forks.adopt(winner.env, episode.env)
            # without `act` the outcome is empty, and the call has no reward rather than one of 0
            if episode.env.has_act:
                episode.record_act(candidate_sets[0].call, winner.outcome, turn)
        # no candidate is chosen from the other forks any more
        await episode.forks.prune()
        if len(candidate_sets) > 1:
            # each fork knows the action of its own call alone, so the actions are applied to the
            # environment that all forks were made of, in call order
            for candidate_set in candidate_sets:
                # the action of an earlier call may have ended the episode
                if not turn.done:
                    await episode.act(candidate_set.call, candidate_set.winner.reply, turn)

    def _keep(self, candidate_set: CandidateSet, turn: Turn) -> None:
        """Keep the candidates of a call as samples, and go on with the winner."""
        episode = self._episode
        call = candidate_set.call
        winner = candidate_set.winner
        order = episode.reply_count
        greedy = candidate_set.greedy
        for c in (*candidate_set.candidates, *([] if greedy is None else [greedy])):
            sample = self._rewarded(call.sample(c.reply, order, c.number), c)
            sample = sample.with_identity(
                committed=c is winner,
                explored=c is winner and candidate_set.explored,
                greedy=c is greedy,
                # the greedy reply is what the others are compared with, and not trained
                trained=sample.identity.trained and c is not greedy,
            )
            episode.samples.append(replace(sample, reward_terms=c.terms))
        if call.summary is not None:
            from agent_system.rollout.summary import summary_sample  # of summaries alone

            episode.keep_summary(call, self._rewarded(summary_sample(call, order), winner))
        episode.reply_count += 1
        episode.finish_call(call, winner.reply, turn)

    def _rewarded(self, sample: Sample, candidate: Candidate) -> Sample:
        mixed_reward = mix(candidate.team, candidate.local, self._episode.settings.reward.alpha)
        return sample.with_rewards(
            fork_reward=candidate.team, local_reward=candidate.local, candidate_reward=mixed_reward
        )


def choose(settings: TreeConfig, rewards: Sequence[float], seed: int) -> int:
    """Return the index of the candidate to commit, given the candidates' rewards."""
    indices = range(len(rewards))
    draw = Random(seed)
    if _explores(settings, draw):
        return draw.randrange(len(rewards))
    if settings.select == "first":
        return 0
    if settings.select == "greedy":
        return max(indices, key=lambda i: rewards[i])
    if settings.select == "random":
        return draw.randrange(len(rewards))
    best = max(rewards)
    return draw.choices(indices, [math.exp((r - best) / settings.temperature) for r in rewards])[0]


def _explores(settings: TreeConfig, draw: Random) -> bool:
    return bool(settings.epsilon) and draw.random() < settings.epsilon


def check_tree_env(env: type[BaseEnv], reward: RewardConfig | None = None) -> None:
    """Raise AgentSystemError for an environment in which candidates cannot be tried, or compared by
    its rewards or a reward model's.
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
            f"{env.__name__} has neither (rewards of step() come too late); define one of them, "
            "set reward.model, or use rollout.sampling=parallel"
        )


def _local(outcome: Outcome, call: Call, where: str) -> float:
    if outcome.local is None:
        return 0.0
    if not isinstance(outcome.local, Mapping):
        return finite(outcome.local, "local", where)
    return sum(
        finite(value, "local", where)
        for key, value in outcome.local.items()
        if key in (call.number, call.runtime.role)
    )
