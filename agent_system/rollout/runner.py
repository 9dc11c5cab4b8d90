"""One episode in one coroutine: an orchestra plays turns in an environment until the environment is done."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from agent_system.agent import Entry
from agent_system.env_caller import EnvHandle
from agent_system.environment import Observation, Outcome
from agent_system.errors import AgentSystemError
from agent_system.memory import Memory
from agent_system.orchestra import BaseOrchestra
from agent_system.projection import Projection
from agent_system.record import EpisodeRecord, Sample
from agent_system.resources import EpisodeResources
from agent_system.reward.mixing import mix
from agent_system.rollout.call import AgentRuntime, Call, EpisodeSpec, Reply
from agent_system.rollout.clock import EpisodeClock
from agent_system.rollout.episode_agents import EpisodeAgents
from agent_system.rollout.episode_tasks import EpisodeTasks
from agent_system.rollout.forks import Forks
from agent_system.rollout.ledger import NEVER, Ledger
from agent_system.rollout.prompt import Prompt
from agent_system.rollout.seeds import stable_seed
from agent_system.rollout.settings import CollectorSettings
from agent_system.rollout.summary import is_due, summarize, summary_sample
from agent_system.tool_use import ToolUse
from agent_system.turn import CallContext, Turn, TurnOver
from verl.protocol.generate import Generation, RolloutError, SamplingParams, StructureError
from verl.utils.names import did_you_mean

if TYPE_CHECKING:
    from agent_system.reward.model import ReplyScorer
    from agent_system.rollout.candidate import Candidate, CandidateSet
    from agent_system.rollout.simultaneous import SimultaneousCalls
    from agent_system.rollout.tree import Tree

T = TypeVar("T")


class EpisodeRunner:
    """A running episode. `run` plays it; `record` returns its record, also after a failure."""

    def __init__(
        self,
        spec: EpisodeSpec,
        orchestra: BaseOrchestra,
        runtimes: Mapping[str, AgentRuntime],
        env: EnvHandle,
        settings: CollectorSettings,
        model: ReplyScorer | None = None,
    ) -> None:
        self.spec = spec
        self.waiting_for = "the environment's reset"
        self._orchestra = orchestra
        self._runtimes = runtimes
        self._env = env
        self._settings = settings
        self.clock = EpisodeClock(settings.episode_timeout_s, settings.call_timeout_s)
        self._samples: list[Sample] = []
        self._roles = {name: runtime.agent.acts_as or name for name, runtime in runtimes.items()}
        self._ledger = Ledger(env.name, lambda role: role in self._roles.values() or self._runtime_of(role))
        self._info: dict[str, Any] = {}
        self._callers: dict[int, str] = {}
        self._over = self.abandoned = False
        self._tasks = EpisodeTasks()
        self._answer = ""
        self._replies = 0  # calls replied to so far
        self._delivered: dict[
            tuple[int, int], int
        ] = {}  # calls of `reply_to` -> place in the order of replies
        self._turn: Turn | None = None
        self._acting = asyncio.Lock()  # one reply of `reply_to` at a time: its action may end the episode
        self._forks = Forks()
        self._tree: Tree | None = None
        if settings.tree is not None and not (spec.validate or spec.greedy):
            from agent_system.rollout.tree import Tree  # of tree sampling alone

            self._tree = Tree(
                settings.tree,
                settings.reward.alpha,
                self._forks,
                model and model.stopping(self.clock.stopped),
            )

    async def run(self) -> None:
        """Play until the environment is done or `max_steps` turns are over.

        Raises the errors of the orchestra, the environment and the engine, and TimeoutError naming what the
        episode was waiting for.
        """
        limit = self.clock.limit_s
        resources = EpisodeResources()
        resources.enter()
        try:
            async with self.clock:
                await self._play()
        except TimeoutError as error:
            if not self.clock.expired:
                raise
            raise TimeoutError(
                f"episode took longer than rollout.episode_timeout_s={limit:g} s, waiting for "
                f"{self.waiting_for}"
            ) from error
        finally:
            self._over = True
            self.waiting_for = f"{self._env.name}.close()"
            try:
                await self._tasks.cancel_others(self.spec.traj_uid)
            finally:
                try:
                    await resources.close()
                finally:
                    await self._forks.end(self._env)

    def abandon_if_late(self) -> bool:
        """End an episode that is still played, so that its further calls are refused; return whether
        it was.
        """
        self.abandoned = not self._over
        self._over = True
        return self.abandoned

    @property
    def left_out(self) -> Counter[str]:
        """Number of candidates of a tree that could not be sampled or scored, by cause."""
        return self._tree.left_out if self._tree else Counter()

    def record(self, failure: str | None = None) -> EpisodeRecord:
        """Return the record of the episode, every reward where it arrived; `assign_rewards` computes the
        samples' rewards from it.
        """
        ledger = self._ledger
        task = self.spec.task
        ordered_samples = sorted(
            map(self._ordered, self._samples), key=lambda s: (s.turn, s.call, s.candidate)
        )
        samples = [ledger.credit(s) for s in ordered_samples if s.order != NEVER]
        unheard = tuple(
            replace(s, committed=False, trained=False) for s in ordered_samples if s.order == NEVER
        )
        if self._settings.tool_sequences:
            from agent_system.rollout.sequences import join_generations  # of this key alone

            samples = join_generations(samples, self._settings.tool_sequences, self._text_of)
        return EpisodeRecord(
            self.spec.uid, self.spec.traj_uid, task.task_id, task.data_source, self.spec.index,
            tuple(samples), ledger.team_reward, len(ledger.turns), dict(self._info), failure,
            ledger.turn_rewards(unheard),
            self.left_out.total(), self._answer, task, unheard=unheard,
        )  # fmt: skip

    @property
    def turn(self) -> Turn | None:
        """The current turn; None after the end of the episode, and in a tree while the environment makes its
        step.
        """
        return self._turn

    async def step(self, action: Any) -> Outcome:
        """End the turn with the team's action; an empty outcome if a call has ended the episode.

        Raises TurnOver after the end of the episode.
        """
        turn = self._ending()
        if self._tree is not None:
            await self._tree.idle()
            self._turn = None
        self._info.update(turn.info)
        if turn.done:
            self._turn = None
            return Outcome(done=True)
        self.waiting_for = f"the environment's step {turn.step}"
        self._answer = str(action)
        outcome = await self._env.outcome("step", action)
        self._info.update(outcome.info)
        self._ledger.step(outcome, self._callers)
        following = outcome.observation or turn.observation
        turn.memory.store((following if turn.memory.keeps_result else turn.observation).text, str(action))
        if outcome.done or turn.step == self._settings.max_steps:
            self._turn = None
        else:
            self._begin(following, turn.step + 1, turn.memory)
        return outcome

    def finish(self, outcome: Outcome) -> None:
        """End the episode with an outcome that the team made itself, without the environment. Raise TurnOver
        after its end.
        """
        turn = self._ending()
        self._turn = None
        self._info.update({**turn.info, **outcome.info})
        self._ledger.step(outcome, self._callers)

    @property
    def runtimes(self) -> Mapping[str, AgentRuntime]:
        """The agents of the run."""
        return self._runtimes

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run `work` as a task that ends with the episode at the latest."""
        return self._tasks.start(work)

    def report(self, info: Mapping[str, Any]) -> None:
        """Add values to the episode's info; numbers become metrics."""
        self._info.update(info)

    async def _play(self) -> None:
        self._agents = EpisodeAgents(self._runtimes, self.spec.task, self._settings.history_length)
        observation = await self._env.observation("reset", self.spec.task)
        self._begin(observation, 1, self._orchestra.memory_class(self._settings.history_length))
        self.waiting_for = "the team"
        await self._orchestra.play_episode(self)

    def _begin(self, observation: Observation, step: int, memory: Memory) -> None:
        self._callers = {}
        self._answer = ""
        self._ledger.open_turn(self._callers)
        self._turn = Turn(observation, step, memory, self._branch if self._tree else self._sample)

    def _ending(self) -> Turn:
        if self._turn is None or self._over:
            raise TurnOver(
                "the episode is over: the environment has ended it, or env.max_steps turns are played"
            )
        return self._turn

    async def reply_to(
        self,
        agent_id: str,
        prompt: Prompt,
        sampling: SamplingParams,
        slots: asyncio.Semaphore,
        *,
        n: int = 1,
        seed: Sequence[int | str] = (),
        also: int | None = None,
    ) -> list[tuple[Call, Reply]]:
        """Sample replies to a prompt that is ready, as `n` calls of the turn with one request to the engine.

        The replies count as heard by other calls, and are trained, once they are delivered (`deliver`).

        Args:
            agent_id: an agent of the run.
            prompt: its prompt.
            sampling: parameters of the request.
            slots: requests that may be generated at the same time; the others wait, in the turn in which they
                came.
            n: number of calls.
            seed: parts of the seed besides those of episode and agent; empty: turn and number of the call, as
                of an orchestra's calls.
            also: a number that the seed depends on as well.

        Raises TurnOver when the episode is over, and the errors of `Call.generate`, also for one aborted
        reply among several. After a StructureError the calls do not exist.
        """
        self._tasks.enter()
        turn = self._ending()
        if turn.done:
            raise TurnOver(
                f"{agent_id} was called after the environment ended the episode in turn {turn.step}"
            )
        callers = self._callers
        heard = self._replies
        runtime = self._agents.now(agent_id)
        numbers = [self._number(agent_id) for _ in range(n)]
        self._ledger.unheard.update((turn.step, number) for number in numbers)
        places = [turn.reserve() for _ in numbers]
        parts = seed or (turn.step, numbers[0], 0)
        call_seed = self._seed(agent_id, *parts)
        call_seed = call_seed if also is None else stable_seed(call_seed, "client", also)
        observation = await self._observation(agent_id, turn)
        calls = [
            Call(
                self.spec,
                agent_id,
                runtime,
                turn.step,
                number,
                place,
                observation,
                prompt,
                heard,
                call_seed,
                runtime.agent,
                own_sampling=sampling,
            )
            for number, place in zip(numbers, places, strict=True)
        ]
        self.waiting_for = f"the reply of {agent_id} (turn {turn.step}, call {numbers[0]})"
        async with slots:
            self._ending()
            if turn.done:
                raise TurnOver(
                    f"the environment ended the episode in turn {turn.step}, while a call of {agent_id} "
                    "waited"
                )
            try:
                generations = await calls[0].generate(n, self.clock)
            except StructureError:
                for number in numbers:
                    del callers[number]
                raise
        return await self._take_in(agent_id, calls, generations, turn, callers)

    async def _observation(self, agent_id: str, turn: Turn) -> Observation:
        """Return what an agent sees in a turn."""
        role = self._roles[agent_id]
        return await self._env.observation("observe", role) if self._env.has_observe else turn.observation

    async def _take_in(
        self,
        agent_id: str,
        calls: Sequence[Call],
        generations: Sequence[Generation | None],
        turn: Turn,
        callers: dict[int, str],
    ) -> list[tuple[Call, Reply]]:
        """Read and act out the replies to calls. Raises RolloutError for one that the engine aborted."""
        replies = []
        for call, generation in zip(calls, generations, strict=True):
            if generation is None:
                raise RolloutError(f"the engine aborted one of {len(calls)} replies of {agent_id}")
            reply = call.read(generation)
            self._keep(call, reply, NEVER)
            self._agents.finish(call, reply)
            async with self._acting:
                if not turn.done:
                    await self._act(call, reply, turn, callers)
            replies.append((call, reply))
        return replies

    def deliver(self, replies: Sequence[tuple[Call, Reply]]) -> None:
        """Count replies of `reply_to` as heard from now on, and train them."""
        for call, reply in replies:
            self._ledger.unheard.discard((call.turn, call.number))
            if (call.turn, call.number) not in self._delivered:
                self._delivered[call.turn, call.number] = self._replies
                self._replies += 1
            self.waiting_for = f"the team (after turn {call.turn}, call {call.number})"
            if self._turn is not None and self._turn.step == call.turn:
                self._turn.record(
                    call.place, Entry(call.agent_id, reply.visible_text, reply.projection.action)
                )

    def withdraw(self, replies: Sequence[tuple[Call, Reply]]) -> None:
        """Undo `deliver`: the client has gone before the first byte."""
        for call, _ in replies:
            self._delivered.pop((call.turn, call.number), None)
            self._ledger.unheard.add((call.turn, call.number))

    async def _sample(self, turn: Turn, agent_id: str, context: CallContext) -> Projection:
        """Sample one reply and apply it (parallel sampling: n episodes of a task, one reply per call)."""
        callers = self._callers
        call = await self._ask(turn, agent_id, context)
        if call.runtime.agent.calls_tools:
            # rounds of tool calls, which an agent without tools does not have
            from agent_system.rollout.tool_loop import play_rounds

            rounds = [call.number]
            try:
                call, reply = await play_rounds(
                    call, self._reply_to, self._keep, partial(self._again, callers, rounds)
                )
            except BaseException:
                self._ledger.unheard.update((turn.step, number) for number in rounds)
                raise
            self._ledger.rounds.update(((turn.step, number), call.number) for number in rounds[:-1])
        else:
            reply, order = await self._reply_to(call)
            self._keep(call, reply, order)
        if (summary := summary_sample(call, self._replies - 1)) is not None:
            self._add_summary(call, summary)
        self._agents.finish(call, reply)
        turn.record(call.place, Entry(agent_id, reply.visible_text, reply.projection.action))
        await self._act(call, reply, turn, callers)
        return reply.projection

    async def _reply_to(self, call: Call) -> tuple[Reply, int]:
        """Sample one reply; return it with its place in the order of replies."""
        (generation,) = await call.generate(1, self.clock)
        assert generation is not None, "a single aborted reply is an error of generate"
        reply = call.read(generation)
        self._refuse_late(call)
        self._replies += 1
        return reply, self._replies - 1

    def _keep(self, call: Call, reply: Reply, order: int, tools: ToolUse | None = None) -> None:
        """Keep a reply as a sample; `tools` counts its tool calls."""
        self._refuse_late(call)
        sample = call.sample(reply, order)
        self._samples.append(sample if tools is None else replace(sample, tools=tools))

    def _again(
        self, callers: dict[int, str], rounds: list[int], call: Call, prompt: Prompt, seed: int
    ) -> Call:
        """Return the next generation of a call of a `ToolAgent`, with a number of its own in the turn, which
        is added to `rounds`.
        """
        number = len(callers)
        callers[number] = self._roles[call.agent_id]
        rounds.append(number)
        self.waiting_for = f"the reply of {call.agent_id} (turn {call.turn}, call {number})"
        return replace(call, number=number, prompt=prompt, prior_replies=self._replies, seed=seed)

    async def _branch(self, turn: Turn, agent_id: str, context: CallContext) -> Projection:
        """Sample K replies, try each on a fork and continue with one (tree sampling)."""
        tree = self._tree
        assert tree is not None
        await tree.ready()
        if turn.done:
            raise TurnOver(
                f"{agent_id} was called while the environment ended the episode in turn {turn.step}"
            )
        if turn is not self._turn:
            raise AgentSystemError(
                f"{agent_id} was called after turn {turn.step}; with rollout.sampling=tree a turn must await "
                "its calls"
            )
        calls = tree.enter(turn, lambda calls: self._tasks.start(self._commit(calls)))
        place = calls.enter()
        try:
            call = await self._ask(turn, agent_id, context)
            k = self._settings.candidates(agent_id, call.runtime.binding.trained)
            replies = await call.generate(k, self.clock)
            asks_greedy = agent_id in self._settings.greedy_baselines
            greedy = await call.greedy_reply(self.clock) if asks_greedy else None
            self.waiting_for = f"the environment's reaction to the candidates of {agent_id} (turn {turn.step}, call {call.number})"
            candidate_set = await tree.grow(call, replies, self._env, greedy)
        except Exception:
            await calls.settle(place, None)
            raise
        except BaseException:
            calls.leave()
            raise
        await calls.settle(place, candidate_set)
        return candidate_set.winner.reply.projection

    async def _commit(self, calls: SimultaneousCalls) -> None:
        """Continue with the chosen candidates of simultaneous calls: adopt the fork of one, apply the actions
        of several in call order.
        """
        candidate_sets = calls.take()
        for candidate_set in candidate_sets:
            self._refuse_late(candidate_set.call)
            self._add_samples(candidate_set, calls.turn)
        if len(candidate_sets) == 1:
            winner = candidate_sets[0].winner
            self._env = self._forks.adopt(winner.env, self._env)
            self._record_act(candidate_sets[0].call, winner.outcome, calls.turn, self._callers)
        await self._forks.prune()
        for candidate_set in candidate_sets if len(candidate_sets) > 1 else ():
            if not calls.turn.done:
                await self._act(candidate_set.call, candidate_set.winner.reply, calls.turn, self._callers)

    def _add_samples(self, candidate_set: CandidateSet, turn: Turn) -> None:
        call = candidate_set.call
        winner = candidate_set.winner
        greedy = candidate_set.greedy
        for c in (*candidate_set.candidates, *([] if greedy is None else [greedy])):
            rewarded = self._rewarded(call.sample(c.reply, self._replies, c.number), c)
            sample = replace(rewarded, committed=c is winner, reward_terms=c.terms)
            self._samples.append(replace(sample, greedy=True, trained=False) if c is greedy else sample)
        if (summary := summary_sample(call, self._replies)) is not None:
            self._add_summary(call, self._rewarded(summary, winner))
        self._replies += 1
        self._agents.finish(call, winner.reply)
        turn.record(
            call.place, Entry(call.agent_id, winner.reply.visible_text, winner.reply.projection.action)
        )

    def _rewarded(self, sample: Sample, candidate: Candidate) -> Sample:
        mixed_reward = mix(candidate.team, candidate.local, self._settings.reward.alpha)
        return replace(
            sample, fork_reward=candidate.team, local_reward=candidate.local, candidate_reward=mixed_reward
        )

    def _add_summary(self, call: Call, summary: Sample) -> None:
        self._samples.append(summary)
        self._ledger.rounds[(call.turn, summary.call)] = call.number

    async def _act(self, call: Call, reply: Reply, turn: Turn, callers: Mapping[int, str]) -> None:
        if self._env.has_act:
            self.waiting_for = (
                f"the environment's reaction to {call.agent_id} (turn {call.turn}, call {call.number})"
            )
            role = self._roles[call.agent_id]
            outcome = await self._env.outcome("act", role, reply.projection.action)
            self._record_act(call, outcome, turn, callers)

    def _record_act(self, call: Call, outcome: Outcome, turn: Turn, callers: Mapping[int, str]) -> None:
        if self._env.has_act:
            self._info.update(outcome.info)
            self._ledger.act(outcome, callers, call.number, turn.step)
            turn.done = turn.done or outcome.done

    async def _ask(self, turn: Turn, agent_id: str, context: CallContext) -> Call:
        """Number a call and build its prompt; if the agent's memory is due, it first writes a summary, which
        has the number before.
        """
        self._tasks.enter()
        if self._over:
            raise TurnOver(f"{agent_id} was called after the episode had ended")
        self._runtime_of(agent_id)  # raises for a name that is not in the run
        runtime = self._agents.now(agent_id)
        summary_number = self._number(agent_id) if is_due(runtime.agent) else None
        number = self._number(agent_id)
        place = turn.reserve(context.step)
        entries = turn.seen(context.sees)
        prior_replies = self._replies
        observation = await self._observation(agent_id, turn)
        filled = {**observation.info, "env_prompt": observation.text, "step": turn.step, **context.variables}
        seed = self._seed(agent_id, turn.step, number, 0)
        call = Call(
            self.spec,
            agent_id,
            runtime,
            turn.step,
            number,
            place,
            observation,
            Prompt("", ()),
            prior_replies,
            seed,
            runtime.agent,
        )
        if summary_number is not None:
            self.waiting_for = f"the summary of {agent_id} (turn {turn.step}, call {summary_number})"
            call = await summarize(call, summary_number, filled, self.clock)
        agent_memory = call.runtime.agent.memory
        memory = turn.memory if agent_memory is None else agent_memory.at(observation.text)
        call = replace(call, prompt=call.runtime.prompts.build(filled, entries, memory))
        await asyncio.sleep(0)  # calls started together build their prompts before any of them gets a reply
        self.waiting_for = f"the reply of {agent_id} (turn {turn.step}, call {number})"
        return call

    def _ordered(self, sample: Sample) -> Sample:
        """Return the sample with its place in the order of replies: NEVER if nobody heard it."""
        place = (sample.turn, sample.call)
        return replace(
            sample, order=NEVER if place in self._ledger.unheard else self._delivered.get(place, sample.order)
        )

    def _number(self, agent_id: str) -> int:
        """Return a new number of the turn, for a generation of an agent."""
        number = max(self._callers, default=-1) + 1
        self._callers[number] = self._roles[agent_id]
        return number

    def _seed(self, *parts: int | str) -> int:
        """Return the seed of a request of this episode."""
        spec = self.spec
        return stable_seed(self._settings.seed, spec.step, spec.validate, spec.uid, spec.index, *parts)

    def _text_of(self, agent_id: str, generation: Generation) -> str:
        return self._runtimes[agent_id].binding.text_of(generation)

    def _refuse_late(self, call: Call) -> None:
        if self._over:
            raise TurnOver(f"the reply of {call.agent_id} arrived after the episode had ended")

    def _runtime_of(self, agent_id: str) -> AgentRuntime:
        runtime = self._runtimes.get(agent_id)
        if runtime is None:
            raise AgentSystemError(
                f"no agent {agent_id!r} in this run{did_you_mean(agent_id, self._runtimes)}; agents: "
                f"{', '.join(self._runtimes)} (turn.act and Outcome.local name agents, BaseOrchestra.agents "
                "lists them)"
            )
        return runtime
