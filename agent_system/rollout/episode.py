"""One episode: its state, its turns and its record. An orchestra plays turns in an environment
until the environment is done.

How a call of an agent gets its reply is decided beside it, by one kind of calls for each way to
sample: `sampled_call` (one reply per call), `tree_call` (`rollout.sampling=tree`), `program_call`
(the gateway).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from agent_system.env_caller import EnvHandle
from agent_system.environment import Observation, Outcome
from agent_system.errors import AgentSystemError
from agent_system.memory import Memory
from agent_system.orchestra import BaseOrchestra
from agent_system.record import CallTimes, EpisodeRecord, Sample
from agent_system.resources import EpisodeResources
from agent_system.rollout.call import AgentRuntime, Call, EpisodeSpec, Reply
from agent_system.rollout.clock import EpisodeClock
from agent_system.rollout.episode_agents import EpisodeAgents
from agent_system.rollout.episode_tasks import EpisodeTasks
from agent_system.rollout.forks import Forks
from agent_system.rollout.ledger import NEVER, Ledger
from agent_system.rollout.prompt import Prompt
from agent_system.rollout.seeds import stable_seed
from agent_system.rollout.settings import CollectorSettings
from agent_system.tool_use import ToolUse
from agent_system.turn import Sampler, Turn, TurnOver
from verl.utils.names import did_you_mean

if TYPE_CHECKING:
    from agent_system.rollout.states import StateRecord
    from agent_system.waves import Branch


class Episode:
    """An episode in progress. `run` plays it; `record` returns its record, also after a failure.

    Attributes:
        spec: which episode it is.
        runtimes: the agents of the run.
        settings: limits and weights.
        clock: its time limits.
        sampler: samples the replies to `Turn.act`; set before `run`.
        before_step: awaited when the team ends a turn; None: the step follows at once.
        waiting_for: what it waits for, for the message of a time limit.
        env: its environment.
        forks: forks of the environment.
        turn: the current turn; None after the end of the episode, and in a tree while the
            environment makes its step.
        tasks: tasks that end with the episode at the latest.
        agents: the agents in their present states, from the beginning of `run`.
        ledger: the rewards.
        samples: the replies so far, without rewards.
        info: values for the metrics.
        reply_count: number of replies so far, which is the order of the next one.
        over: it has ended, or nobody waits for it any more, so that further calls are refused.
        abandoned: it has not ended in time, although it was cancelled.
        left_out: number of candidates of a tree that could not be sampled or scored, by cause.
    """

    sampler: Sampler
    agents: EpisodeAgents

    def __init__(
        self,
        spec: EpisodeSpec,
        orchestra: BaseOrchestra,
        runtimes: Mapping[str, AgentRuntime],
        env: EnvHandle,
        settings: CollectorSettings,
    ) -> None:
        self.spec = spec
        self.runtimes = runtimes
        self.settings = settings
        self.clock = EpisodeClock(settings.episode_timeout_s, settings.call_timeout_s)
        self.before_step: Callable[[], Awaitable[None]] | None = None
        self.waiting_for = "the environment's reset"
        self.env = env
        self.forks = Forks()
        self.turn: Turn | None = None
        self.tasks = EpisodeTasks()
        self.ledger = Ledger(env.name, self._check_role)
        self.samples: list[Sample] = []
        self.info: dict[str, Any] = {}
        self.reply_count = 0
        self.over = False
        self.abandoned = False
        self.left_out: Counter[str] = Counter()
        self._states: StateRecord | None = None
        if settings.records(spec.uid, spec.validate):
            self.clock.times = {}
        self._orchestra = orchestra
        self._answer = ""

    async def run(self) -> None:
        """Play until the environment is done or `max_steps` turns are over.

        Raises the errors of the orchestra, the environment and the engine, and TimeoutError naming
        what the episode was waiting for.
        """
        resources = EpisodeResources()
        resources.enter()
        try:
            async with self.clock:
                await self._play()
        except TimeoutError as error:
            # one of a user's code, or of a call, is no limit of the episode
            if not self.clock.expired:
                raise
            raise TimeoutError(
                f"episode took longer than rollout.episode_timeout_s={self.clock.limit_s:g} s, "
                f"waiting for {self.waiting_for}"
            ) from error
        finally:
            self.over = True
            self.waiting_for = f"{self.env.name}.close()"
            # calls use resources and the environment, so these close after them, whatever fails
            # before
            try:
                await self.tasks.cancel_others(self.spec.traj_uid)
            finally:
                try:
                    await resources.close()
                finally:
                    await self.forks.end(self.env)

    async def _play(self) -> None:
        self.agents = EpisodeAgents(self.runtimes, self.spec.task, self.settings.history_length)
        observation = await self.env.observation("reset", self.spec.task)
        self._begin(observation, 1, self._orchestra.memory_class(self.settings.history_length))
        if self.clock.times is not None and self.env.has_render:
            # of environments that draw states alone
            from agent_system.rollout.states import StateRecord

            self._states = StateRecord()
            await self._states.add(self.env)
        self.waiting_for = "the team"
        await self._orchestra.play_episode(self)

    def require_turn(self) -> Turn:
        """Return the current turn. Raise TurnOver after the end of the episode."""
        if self.turn is None or self.over:
            raise TurnOver(
                "the episode is over: the environment has ended it, or env.max_steps turns are played"
            )
        return self.turn

    async def step(self, action: Any) -> Outcome:
        """End the turn with the team's action; an empty outcome if a call has ended the episode.

        Raises TurnOver after the end of the episode.
        """
        turn = self.require_turn()
        if self.before_step is not None:
            await self.before_step()
        self._add_info(turn)
        if turn.done:
            await self._add_state()
            self.turn = None
            return Outcome(done=True)
        self.waiting_for = f"the environment's step {turn.step}"
        self._answer = str(action)
        outcome = await self.env.outcome("step", action)
        await self._add_state()
        self.info.update(outcome.info)
        self.ledger.step(outcome)
        following = outcome.observation or turn.observation
        turn.memory.store((following if turn.memory.keeps_result else turn.observation).text, str(action))
        if outcome.done or turn.step == self.settings.max_steps:
            self.turn = None
        else:
            self._begin(following, turn.step + 1, turn.memory)
        return outcome

    async def _add_state(self) -> None:
        if self._states is not None:
            await self._states.add(self.env)

    def finish(self, outcome: Outcome) -> None:
        """End the episode with an outcome that the team made itself, without the environment. Raise
        TurnOver after its end.
        """
        turn = self.require_turn()
        self.turn = None
        self._add_info(turn)
        self.info.update(outcome.info)
        self.ledger.step(outcome)

    def _add_info(self, turn: Turn) -> None:
        self.info.update(turn.info)
        self.info.update({name: self.info.get(name, 0) + count for name, count in turn.counts.items()})

    def _begin(self, observation: Observation, step: int, memory: Memory) -> None:
        self._answer = ""
        self.turn = Turn(observation, step, memory, self.sampler)
        self.ledger.open_turn(self.turn.callers)

    def admit(self, agent_id: str) -> AgentRuntime:
        """Return the agent, in its present state, for a call that the running task makes.

        Raises:
            TurnOver: the episode has ended.
            AgentSystemError: the agent is not in the run, or `EpisodeAgents.now` raises it.
        """
        self.tasks.enter()
        if self.over:
            raise TurnOver(f"{agent_id} was called after the episode had ended")
        self._runtime_of(agent_id)
        return self.agents.now(agent_id)

    def new_call(
        self,
        turn: Turn,
        agent_id: str,
        runtime: AgentRuntime,
        step: str = "",
        branch: Branch | None = None,
    ) -> Call:
        """Return the next call of a turn, without its prompt and what the agent alone observes;
        `step` and `branch` as in `CallContext`.
        """
        number = turn.number(runtime.role, branch)
        return Call(
            spec=self.spec,
            agent_id=agent_id,
            runtime=runtime,
            turn=turn.step,
            number=number,
            place=turn.reserve(step),
            observation=turn.observation,
            prompt=Prompt("", ()),
            prior_replies=self.reply_count,
            seed=self.seed(agent_id, turn.step, number, 0),
            before=runtime.agent,
            design=turn.design,
        )

    def seed(self, agent_id: str, *parts: int | str) -> int:
        """Return the seed of a request; with `rollout.repeat_calls` several episodes have the same."""
        shared_by = 1 if self.spec.validate else self.settings.repeat_calls.get(agent_id, 1)
        return stable_seed(
            self.settings.seed,
            self.spec.step,
            self.spec.validate,
            self.spec.uid,
            self.spec.index // shared_by,
            agent_id,
            *parts,
        )

    async def observe(self, role: str, turn: Turn) -> Observation:
        """Return what the agent of a role sees in a turn."""
        return await self.env.observation("observe", role) if self.env.has_observe else turn.observation

    async def reply(self, call: Call) -> tuple[Reply, int]:
        """Request the reply to a call; return it with its place in the order of replies. Raise
        TurnOver if it is late.
        """
        reply = await call.reply(self.clock)
        self.refuse_late(call)
        self.reply_count += 1
        return reply, self.reply_count - 1

    def refuse_late(self, call: Call) -> None:
        """Raise TurnOver for a call whose reply comes after the end of the episode."""
        if self.over:
            raise TurnOver(f"the reply of {call.agent_id} arrived after the episode had ended")

    def keep(self, call: Call, reply: Reply, order: int, tools: ToolUse | None = None) -> None:
        """Keep a reply as a sample; `tools` counts its tool calls. Raise TurnOver if it is late."""
        self.refuse_late(call)
        self.samples.append(call.sample(reply, order, tools=tools))

    def keep_summary(self, call: Call, sample: Sample) -> None:
        """Keep the sample of the summary with which a call began; it shares the rewards of the
        call.
        """
        self.samples.append(sample)
        self.ledger.rounds[sample.identity.call_key] = call.number

    def finish_call(self, call: Call, reply: Reply, turn: Turn) -> None:
        """Go on with a reply: its agent as it is after it, and the entry that the other agents
        read.
        """
        self.agents.finish(call, reply)
        # what children say is heard by those who called them alone
        if not call.depth:
            turn.record(call.place, call.entry(reply))

    async def act(self, call: Call, reply: Reply, turn: Turn) -> None:
        """Let an environment with `act` react to a reply, which may end the episode."""
        if self.env.has_act:
            self.waiting_for = f"the environment's reaction to {call.label}"
            self.record_act(
                call, await self.env.outcome("act", call.runtime.role, reply.projection.action), turn
            )

    def record_act(self, call: Call, outcome: Outcome, turn: Turn) -> None:
        """Record the outcome of `act` after a call."""
        self.info.update(outcome.info)
        self.ledger.act(outcome, call.number, turn.step)
        turn.done = turn.done or outcome.done

    def _check_role(self, role: str) -> None:
        """Raise AgentSystemError unless an agent has this name for the environment."""
        # most names are those in the team, which need no look at the others
        if role not in self.runtimes and not any(r.role == role for r in self.runtimes.values()):
            self._runtime_of(role)

    def _runtime_of(self, agent_id: str) -> AgentRuntime:
        runtime = self.runtimes.get(agent_id)
        if runtime is None:
            raise AgentSystemError(
                f"no agent {agent_id!r} in this run{did_you_mean(agent_id, self.runtimes)}; "
                f"agents: {', '.join(self.runtimes)} (turn.act and Outcome.local name agents, "
                "BaseOrchestra.agents lists them)"
            )
        return runtime

    def record(self, failure: str | None = None) -> EpisodeRecord:
        """Return the record of the episode, every reward where it arrived; `assign_rewards`
        computes the samples' rewards from it.
        """
        ledger = self.ledger
        task = self.spec.task
        times = self.clock.times or {}
        ordered_samples = sorted(
            (_placed(s, ledger.order_of(s), times.get(s.identity.call_key)) for s in self.samples),
            key=lambda s: (*s.identity.call_key, s.identity.candidate),
        )
        samples = [ledger.credit(s) for s in ordered_samples if s.identity.order != NEVER]
        unheard = tuple(
            s.with_identity(committed=False, trained=False)
            for s in ordered_samples
            if s.identity.order == NEVER
        )
        if self.settings.tool_sequences:
            from agent_system.rollout.sequences import join_generations  # of this key alone

            samples = join_generations(
                samples,
                self.settings.tool_sequences,
                lambda agent_id, generation: self.runtimes[agent_id].binding.text_of(generation),
            )
        return EpisodeRecord(
            uid=self.spec.uid,
            traj_uid=self.spec.traj_uid,
            task_id=task.task_id,
            data_source=task.data_source,
            index=self.spec.index,
            samples=tuple(samples),
            team_reward=ledger.team_reward,
            turns=len(ledger.turns),
            info=dict(self.info),
            failure=failure,
            turn_rewards=ledger.turn_rewards(unheard),
            left_out=self.left_out.total(),
            left_out_causes={cause: count for cause, count in self.left_out.items() if count},
            answer=self._answer,
            task=task,
            unheard=unheard,
            started=self.clock.started if self.clock.times is not None else 0.0,
            states=tuple(self._states.states) if self._states is not None else (),
        )


def _placed(sample: Sample, order: int, times: CallTimes | None) -> Sample:
    """Return a sample with its place in the order of replies and its times."""
    # a copy of every sample of a step would take a tenth of the controller's time
    if order != sample.identity.order:
        sample = sample.with_identity(order=order)
    return sample if times is None else replace(sample, times=times)
