"""One call of an agent: its prompt, the engine's reply, and the resulting sample."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

from agent_system.agent import BaseAgent, Entry
from agent_system.environment import Observation, Task
from agent_system.projection import Projection, strip_thinking
from agent_system.record import Sample, SampleIdentity, SampleRequest
from agent_system.rollout.binding import AgentBinding
from agent_system.rollout.clock import EpisodeClock
from agent_system.rollout.prompt import Prompt, PromptBuilder
from agent_system.rollout.remote import MessageBuilder, RemoteBinding, RemoteGeneration
from agent_system.tool_use import ToolUse
from verl.protocol.generate import (
    GREEDY_SUFFIX,
    EngineGoneError,
    EngineStuckError,
    Generation,
    RolloutError,
    SamplingParams,
    priority_of,
)


@dataclass(frozen=True, slots=True)
class AgentRuntime:
    """An agent of a run: its role, its policy or server, and its prompt builder."""

    agent: BaseAgent
    binding: AgentBinding | RemoteBinding
    prompts: PromptBuilder | MessageBuilder

    @property
    def role(self) -> str:
        """The agent's name for the environment."""
        return self.agent.acts_as or self.agent.agent_id

    def of(self, agent: BaseAgent) -> AgentRuntime:
        """Return the runtime of another state of the agent."""
        return self if agent is self.agent else replace(self, agent=agent, prompts=self.prompts.of(agent))

    def begin(self, task: Task, history_length: int) -> AgentRuntime:
        """Return the runtime of a new episode, in which an agent with state has an object of its
        own.

        Raises AgentSystemError when the state cannot be copied, and the errors of
        `BaseAgent.start`.
        """
        if not self.agent.stateful:
            return self
        agent = self.agent.fork()
        if agent.memory_class is not None:
            agent.memory = agent.memory_class(history_length)
        agent.start(replace(task, ground_truth=None))
        return self.of(agent)


@dataclass(frozen=True, slots=True)
class EpisodeSpec:
    """Identification of one episode of a collection.

    Attributes:
        task: the task.
        uid: id of the group.
        index: number of the episode in its group.
        step: training step.
        validate: sample with `val_sampling`.
        greedy: decode greedily; `uid` then ends in `GREEDY_SUFFIX`.
    """

    task: Task
    uid: str
    index: int
    step: int
    validate: bool
    greedy: bool = False

    @property
    def traj_uid(self) -> str:
        """Id of the episode."""
        return f"{self.uid}#{self.index}"

    @property
    def env_uid(self) -> str:
        """Part of the environment's seed: a greedy episode has the environment of the group that it
        is a baseline for.
        """
        return self.uid.removesuffix(GREEDY_SUFFIX)

    def sampling_of(self, binding: AgentBinding | RemoteBinding) -> SamplingParams:
        """Return the sampling parameters of an agent in this episode."""
        sampling = binding.val_sampling if self.validate else binding.sampling
        return replace(sampling, temperature=0.0, top_p=1.0, top_k=-1) if self.greedy else sampling


@dataclass(frozen=True, slots=True)
class Reply:
    """One generation, decoded and parsed.

    Attributes:
        generation: the engine's output.
        text: the reply as text, see `ChatTemplate.text_of`.
        projection: result of the agent's projection.
        agent: the agent after the projection: a copy, if it has state.
    """

    generation: Generation
    text: str
    projection: Projection
    agent: BaseAgent

    @property
    def visible_text(self) -> str:
        """The reply without its thinking, as the other agents' prompts contain it."""
        return self.projection.text or strip_thinking(self.text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A call of an agent.

    Attributes:
        spec: the episode.
        agent_id, runtime: the agent.
        turn, number: number of the turn, from 1, and of the call inside it, from 0.
        place: reserved place in the team context.
        observation: observation of the agent.
        prompt: the prompt.
        prior_replies: number of replies in the episode when the prompt was built.
        seed: seed of the request.
        before: the agent at the beginning of the call, before its summary and its first round.
        summary: the generation of a summary with which the call began, and its reply; None for a
            call without one.
        so_far: the tool calls and results before this round of a `ToolAgent`, as texts; they belong
            to the anchor.
        own_sampling: sampling parameters of this call alone; None: those of the agent in this
            episode.
        depth: number of spawns around it.
        design: as `SampleIdentity.design`.
        program: as `SampleRequest.program`.
    """

    spec: EpisodeSpec
    agent_id: str
    runtime: AgentRuntime
    turn: int
    number: int
    place: int
    observation: Observation
    prompt: Prompt
    prior_replies: int
    seed: int
    before: BaseAgent
    summary: tuple[Call, Reply] | None = None
    so_far: tuple[str, ...] = ()
    own_sampling: SamplingParams | None = None
    depth: int = 0
    design: str = ""
    program: Mapping[str, Any] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """Which call it is, for messages."""
        return f"{self.agent_id} (turn {self.turn}, call {self.number})"

    @property
    def sampling(self) -> SamplingParams:
        """Sampling parameters of the request."""
        return self.own_sampling or self.spec.sampling_of(self.runtime.binding)

    def read(self, generation: Generation) -> Reply:
        """Decode and project one reply. The state of the call's agent does not change: a copy
        projects.
        """
        text = self.runtime.binding.text_of(generation, self.prompt.text)
        agent = self.runtime.agent.fork()
        return Reply(generation, text, agent.project(text), agent)

    def entry(self, reply: Reply) -> Entry:
        """Return the entry of a reply in the team context."""
        return Entry(self.agent_id, reply.visible_text, reply.projection.action)

    def sample(self, reply: Reply, order: int, candidate: int = 0, tools: ToolUse | None = None) -> Sample:
        """Return the sample of a reply, without rewards; `tools` counts its tool calls."""
        binding = self.runtime.binding
        projection = reply.projection
        return Sample(
            agent_id=self.agent_id,
            text=reply.text,
            action=projection.action,
            valid=projection.valid,
            fields=projection.fields,
            identity=SampleIdentity(
                policy_id=binding.policy_id,
                wg_id=binding.wg_id,
                turn=self.turn,
                call=self.number,
                candidate=candidate,
                anchor="\n".join(
                    (str(self.observation.info.get("anchor", self.observation.text)), *self.so_far)
                ),
                prior_replies=self.prior_replies,
                order=order,
                trained=binding.trained,
                depth=self.depth,
                design=self.design,
            ),
            request=SampleRequest(
                prompt_text=self.prompt.text,
                prompt_ids=self.prompt.ids,
                messages=self.prompt.messages,
                dropped_context=self.prompt.dropped,
                seed=self.seed,
                max_tokens=self.spec.sampling_of(binding).max_tokens,
                masked=bool(self.sampling.structure),
                pad_token_id=binding.pad_token_id,
                program=self.program,
            ),
            generation=reply.generation,
            tools=tools,
        )

    async def reply(self, clock: EpisodeClock) -> Reply:
        """Request one reply and read it. Raise as `generate`."""
        (generation,) = await self.generate(1, clock)
        assert generation is not None, "a single aborted reply is an error of generate"
        return self.read(generation)

    async def greedy_reply(self, clock: EpisodeClock) -> Generation | None:
        """Request one greedy reply to the same prompt; None if the engine gives none."""
        greedy = replace(self, spec=replace(self.spec, uid=self.spec.uid + GREEDY_SUFFIX, greedy=True))
        try:
            (reply,) = await greedy.generate(1, clock)
        except EngineGoneError:
            raise
        except RolloutError:
            return None
        return reply

    async def generate(self, n: int, clock: EpisodeClock) -> Sequence[Generation | None]:
        """Request `n` replies from the engine or server with one request; None stands for an
        aborted or empty reply.

        Raises:
            RolloutError: no reply of a server within `clock.call_s` seconds, or of an engine that
                sampled nothing for as long; only aborted or empty replies; a wrong number of
                replies or log-probs.
        """
        binding = self.runtime.binding
        request_id = f"{self.spec.traj_uid}/{self.turn}.{self.number}"
        is_remote = isinstance(binding, RemoteBinding)
        began = clock.seconds
        try:
            with nullcontext() if is_remote else clock.stopped():
                async with asyncio.timeout(clock.call_s if is_remote else None) as timeout:
                    priority = priority_of(self.spec.validate)
                    replies = await binding.replies(
                        self.prompt, self.sampling, n, self.seed, request_id, priority
                    )
        except (TimeoutError, EngineStuckError) as error:
            # Another limit than this one: of the whole episode, or of code below.
            if isinstance(error, TimeoutError) and not timeout.expired():
                raise
            why = f": {error}" if isinstance(error, EngineStuckError) else ""
            raise RolloutError(
                f"no reply for {binding.agent_id} within rollout.call_timeout_s={clock.call_s:g} s "
                f"(policy {binding.policy_id}){why}"
            ) from error
        if len(replies) != n:
            raise RolloutError(
                f"asked the engine of {binding.policy_id} for {n} "
                f"{'reply' if n == 1 else 'replies'}, got {len(replies)}"
            )
        waited = max(getattr(reply, "waited_s", 0.0) for reply in replies)
        clock.note((self.turn, self.number), began, waited)
        # A server behind an API tells no token ids.
        whole = [
            None if r.stop_reason == "abort" or not (r.token_ids or isinstance(r, RemoteGeneration)) else r
            for r in replies
        ]
        if all(reply is None for reply in whole):
            raise RolloutError(
                f"the engine of {binding.policy_id} returned an aborted or empty reply for {binding.agent_id}"
            )
        for reply in whole:
            if reply is not None and len(reply.log_probs) != len(reply.token_ids):
                raise RolloutError(
                    f"the engine of {binding.policy_id} returned {len(reply.token_ids)} tokens but "
                    f"{len(reply.log_probs)} log-probs"
                )
        return whole
