"""One call of an agent: what it is asked, what the engine answers, and the sample that it becomes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace

from agent_system.agent import BaseAgent
from agent_system.environment import Observation, Task
from agent_system.projection import Projection, strip_thinking
from agent_system.record import Sample
from agent_system.rollout.binding import AgentBinding
from agent_system.rollout.prompt import Prompt, PromptBuilder
from agent_system.rollout.remote import MessageBuilder, RemoteBinding, RemoteGeneration
from verl.protocol.generate import GREEDY_SUFFIX, Generation, RolloutError, SamplingParams


@dataclass(frozen=True, slots=True)
class AgentRuntime:
    """An agent of a run: its role, its policy or server, and its prompt builder."""

    agent: BaseAgent
    binding: AgentBinding | RemoteBinding
    prompts: PromptBuilder | MessageBuilder


@dataclass(frozen=True, slots=True)
class EpisodeSpec:
    """What identifies one episode of a collection.

    Attributes:
        task: the dataset row.
        uid: the group.
        index: number of the episode in its group.
        step: training step.
        validate: sample with `val_sampling`.
        greedy: always take the likeliest token; `uid` then ends in `GREEDY_SUFFIX`.
    """

    task: Task
    uid: str
    index: int
    step: int
    validate: bool
    greedy: bool = False

    @property
    def traj_uid(self) -> str:
        """Name of the episode."""
        return f"{self.uid}#{self.index}"

    @property
    def world_uid(self) -> str:
        """Seeds the environment: a greedy episode plays in the world of the group that it is a baseline for."""
        return self.uid.removesuffix(GREEDY_SUFFIX)

    def sampling_of(self, binding: AgentBinding | RemoteBinding) -> SamplingParams:
        """How an agent samples in this episode."""
        sampling = binding.val_sampling if self.validate else binding.sampling
        return replace(sampling, temperature=0.0, top_p=1.0, top_k=-1) if self.greedy else sampling


@dataclass(frozen=True, slots=True)
class Reply:
    """One generation, read.

    Attributes:
        generation: what the engine gave.
        text: as text, special tokens left out.
        projection: what the agent's projection made of it.
    """

    generation: Generation
    text: str
    projection: Projection

    @property
    def said(self) -> str:
        """What the others read of it."""
        return self.projection.text or strip_thinking(self.text)


@dataclass(frozen=True, slots=True)
class Call:
    """An agent is asked.

    Attributes:
        spec: the episode.
        agent_id, runtime: who is asked.
        turn, number: which call it is.
        place: reserved in the team context.
        seen: what the environment showed the agent.
        prompt: what it reads.
        heard: replies given when the prompt was built.
        seed: of the request.
    """

    spec: EpisodeSpec
    agent_id: str
    runtime: AgentRuntime
    turn: int
    number: int
    place: int
    seen: Observation
    prompt: Prompt
    heard: int
    seed: int

    def read(self, generation: Generation) -> Reply:
        """Decode and project one reply."""
        text = self.runtime.binding.text_of(generation)
        return Reply(generation, text, self.runtime.agent.project(text))

    def sample(self, reply: Reply, order: int, candidate: int = 0) -> Sample:
        """The trainable row of a reply, without rewards."""
        binding, said = self.runtime.binding, reply.projection
        return Sample(
            self.agent_id,
            binding.policy_id,
            binding.wg_id,
            self.turn,
            self.number,
            candidate,
            self.prompt.text,
            self.prompt.ids,
            reply.generation,
            reply.text,
            said.action,
            said.valid,
            said.fields,
            self.prompt.dropped,
            binding.pad_token_id,
            self.seed,
            self.spec.sampling_of(binding).max_tokens,
            str(self.seen.info.get("anchor", self.seen.text)),
            heard=self.heard,
            order=order,
            trained=binding.trained,
        )

    async def generate(self, n: int, limit: float) -> Sequence[Generation | None]:
        """Ask the engine for `n` replies with one request; None stands for one that was aborted or is empty.

        Raises:
            RolloutError: no reply within `limit` seconds, none that is whole, or not what was asked for.
        """
        binding = self.runtime.binding
        request_id = f"{self.spec.traj_uid}/{self.turn}.{self.number}"
        try:
            async with asyncio.timeout(limit) as clock:
                replies = await binding.replies(self.prompt, self.spec.sampling_of(binding), n, self.seed, request_id)
        except TimeoutError as error:
            if not clock.expired():
                raise
            raise RolloutError(
                f"no reply for {binding.agent_id} within rollout.call_timeout_s={limit:g} s (policy {binding.policy_id})"
            ) from error
        if len(replies) != n:
            raise RolloutError(f"asked the engine of {binding.policy_id} for {n} {'reply' if n == 1 else 'replies'}, got {len(replies)}")
        whole = [None if r.stop_reason == "abort" or not (r.token_ids or isinstance(r, RemoteGeneration)) else r for r in replies]
        if all(reply is None for reply in whole):
            raise RolloutError(f"the engine of {binding.policy_id} returned an aborted or empty reply for {binding.agent_id}")
        for reply in whole:
            if reply is not None and len(reply.log_probs) != len(reply.token_ids):
                raise RolloutError(
                    f"the engine of {binding.policy_id} returned {len(reply.token_ids)} tokens but {len(reply.log_probs)} log-probs"
                )
        return whole
