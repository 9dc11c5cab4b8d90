"""A call of an agent in tree sampling: several replies, each tried on a fork of the environment, of which the
episode goes on with one.

Calls that run at the same time are `SimultaneousCalls`: none of them goes on before all have their candidates.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from agent_system.errors import AgentSystemError
from agent_system.projection import Projection
from agent_system.record import Sample
from agent_system.reward.mixing import mix
from agent_system.rollout.candidate import Candidate, CandidateSet
from agent_system.rollout.episode import Episode
from agent_system.rollout.sampled_call import prompted_call
from agent_system.rollout.simultaneous import SimultaneousCalls
from agent_system.rollout.summary import summary_sample
from agent_system.rollout.tree import Tree
from agent_system.turn import Turn, TurnOver

if TYPE_CHECKING:
    from agent_system.reward.model import ReplyScorer


class TreeCalls:
    """The calls of an episode, each with several candidates."""

    def __init__(self, episode: Episode, model: ReplyScorer | None = None) -> None:
        """Begin without calls; `model` scores every candidate."""
        settings = episode.settings
        assert settings.tree is not None
        self._episode = episode
        self._tree = Tree(
            settings.tree,
            settings.reward.alpha,
            episode.forks,
            model and model.stopping(episode.clock.stopped),
        )
        episode.left_out = self._tree.left_out
        self._open: SimultaneousCalls | None = None

    async def end_turn(self) -> None:
        """Wait until no call runs, and refuse later ones of the turn. Raise the error of a failed commit."""
        while self._open is not None:
            await self._finish(self._open)
        # the step changes the state on which candidates of this turn would be tried
        self._episode.turn = None

    async def sample(self, turn: Turn, agent_id: str, variables: Mapping[str, Any]) -> Projection:
        """Call an agent: sample K replies, try each on a fork, and return the projection of the chosen one."""
        episode = self._episode
        # choices are being committed: the state of which the candidates need forks comes after that
        while self._open is not None and self._open.settled:
            await self._finish(self._open)
        # `Turn.act` has looked at this before the commit, whose actions may end the episode
        if turn.done:
            raise TurnOver(
                f"{agent_id} was called while the environment ended the episode in turn {turn.step}"
            )
        if turn is not episode.turn:
            raise AgentSystemError(
                f"{agent_id} was called after turn {turn.step}; with rollout.sampling=tree a turn must await "
                "its calls"
            )
        self._open = self._open or SimultaneousCalls(turn, self._start_commit)
        calls = self._open
        place = calls.enter()
        try:
            candidate_set = await self._candidates(turn, agent_id, variables)
        except Exception:
            # the others go on without this call, which raises in its place among them: what the team does next
            # does not depend on when it failed
            await calls.settle(place, None)
            raise
        except BaseException:
            # a cancelled call ends at once, and the others do not wait for it
            calls.leave()
            raise
        await calls.settle(place, candidate_set)
        return candidate_set.winner.reply.projection

    async def _candidates(self, turn: Turn, agent_id: str, variables: Mapping[str, Any]) -> CandidateSet:
        episode = self._episode
        call = await prompted_call(episode, turn, agent_id, variables)
        k = episode.settings.candidates(agent_id, call.runtime.binding.trained)
        replies = await call.generate(k, episode.clock)
        asks_greedy = agent_id in episode.settings.greedy_baselines
        greedy = await call.greedy_reply(episode.clock) if asks_greedy else None
        episode.waiting_for = f"the environment's reaction to the candidates of {call.label}"
        return await self._tree.grow(call, replies, episode.env, greedy)

    async def _finish(self, calls: SimultaneousCalls) -> None:
        """Wait for the commit of calls. Raise its error: the state is then unknown."""
        await calls.over()
        if calls.failure is not None:
            raise calls.failure
        # another one that waited may have begun new calls by now
        if self._open is calls:
            self._open = None

    def _start_commit(self, calls: SimultaneousCalls) -> asyncio.Task[None]:
        return self._episode.tasks.start(self._commit(calls))

    async def _commit(self, calls: SimultaneousCalls) -> None:
        """Go on with the chosen candidates of simultaneous calls."""
        episode = self._episode
        turn = calls.turn
        candidate_sets = calls.take()
        for candidate_set in candidate_sets:
            episode.refuse_late(candidate_set.call)
            self._keep(candidate_set, turn)
        if len(candidate_sets) == 1:
            # the fork of the winner is the state after its action, and nothing else has happened meanwhile
            (candidate_set,) = candidate_sets
            winner = candidate_set.winner
            episode.env = episode.forks.adopt(winner.env, episode.env)
            # without `act` the outcome is empty, and the call has no reward rather than one of 0
            if episode.env.has_act:
                episode.record_act(candidate_set.call, winner.outcome, turn)
        # no candidate is chosen from the other forks any more
        await episode.forks.prune()
        if len(candidate_sets) > 1:
            # each fork knows the action of its own call alone, so the actions are applied to the environment
            # that all forks were made of, in call order
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
            rewarded = self._rewarded(call.sample(c.reply, order, c.number), c)
            sample = replace(rewarded, committed=c is winner, reward_terms=c.terms)
            # the greedy reply is what the others are compared with, and not trained
            episode.samples.append(replace(sample, greedy=True, trained=False) if c is greedy else sample)
        if (summary := summary_sample(call, order)) is not None:
            episode.keep_summary(call, self._rewarded(summary, winner))
        episode.reply_count += 1
        episode.finish_call(call, winner.reply, turn)

    def _rewarded(self, sample: Sample, candidate: Candidate) -> Sample:
        mixed_reward = mix(candidate.team, candidate.local, self._episode.settings.reward.alpha)
        return replace(
            sample, fork_reward=candidate.team, local_reward=candidate.local, candidate_reward=mixed_reward
        )
