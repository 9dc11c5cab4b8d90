"""One episode, one coroutine: an orchestra plays turns in an environment until it is done."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from agent_system.agent import BaseAgent, Entry
from agent_system.environment import Observation, Task
from agent_system.errors import AgentSystemError, suggestion
from agent_system.orchestra import BaseOrchestra
from agent_system.projection import Projection, strip_thinking
from agent_system.record import EpisodeRecord, Sample
from agent_system.rollout.binding import AgentBinding
from agent_system.rollout.env_caller import EnvCaller
from agent_system.rollout.ledger import Ledger
from agent_system.rollout.prompt import PromptBuilder
from agent_system.rollout.seeds import stable_seed
from agent_system.rollout.settings import CollectorSettings
from agent_system.rollout.tokens import decode
from agent_system.turn import Turn, TurnOver
from verl.protocol.generate import GREEDY_SUFFIX, GenerateRequest, Generation, RolloutError, SamplingParams

CLOSE_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class Seat:
    """An agent at the table: its role, its policy and its prompts."""

    agent: BaseAgent
    binding: AgentBinding
    prompts: PromptBuilder


@dataclass(frozen=True, slots=True)
class Plan:
    """Which episode to play.

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

    def sampling_of(self, binding: AgentBinding) -> SamplingParams:
        """How an agent samples in this episode."""
        sampling = binding.val_sampling if self.validate else binding.sampling
        return replace(sampling, temperature=0.0, top_p=1.0, top_k=-1) if self.greedy else sampling


class Episode:
    """A running episode. `run` plays it; `record` says what became of it, also after a failure."""

    def __init__(
        self, plan: Plan, orchestra: BaseOrchestra, seats: Mapping[str, Seat], env: EnvCaller, settings: CollectorSettings
    ) -> None:
        self.plan = plan
        self.waiting_for = "the environment's reset"
        self._orchestra = orchestra
        self._seats = seats
        self._env = env
        self._settings = settings
        self._samples: list[Sample] = []
        self._ledger = Ledger(type(env.env).__name__, self._seat)
        self._info: dict[str, Any] = {}
        self._callers: dict[int, str] = {}
        self._over = False
        self._speakers: set[asyncio.Task[Any] | None] = set()

    async def run(self) -> None:
        """Play until the environment is done or `max_steps` turns are over.

        Raises whatever the orchestra, the environment or the engine raises, and TimeoutError saying what was waited for.
        """
        limit = self._settings.episode_timeout_s
        try:
            async with asyncio.timeout(limit) as clock:
                await self._play()
        except TimeoutError as error:
            if not clock.expired():
                raise
            raise TimeoutError(f"episode took longer than rollout.episode_timeout_s={limit:g} s, waiting for {self.waiting_for}") from error
        finally:
            self._over = True
            for task in self._speakers - {asyncio.current_task()}:  # calls that an orchestra started and did not wait for
                if task is not None:
                    task.cancel()
            await self._env.close(CLOSE_TIMEOUT_S)

    def record(self, failure: str | None = None) -> EpisodeRecord:
        """Return what happened, every reward where it arrived; `assign_rewards` makes the rewards of samples from it."""
        ledger, task = self._ledger, self.plan.task
        samples = []
        for s in sorted(self._samples, key=lambda s: (s.turn, s.call, s.candidate)):
            act, local = ledger.acts.get((s.turn, s.call)), ledger.local(s.turn, s.call)
            unpaid = act is None and local == 0.0  # the usual case, and copying a sample is what costs
            samples.append(s if unpaid else replace(s, act_reward=act, local_reward=local))
        return EpisodeRecord(
            self.plan.uid, self.plan.traj_uid, task.task_id, task.data_source, self.plan.index,
            tuple(samples), ledger.team_reward, len(ledger.turns), dict(self._info), failure, tuple(ledger.turns),
        )  # fmt: skip

    async def _play(self) -> None:
        observation = await self._env.observation("reset", self.plan.task)
        memory = self._orchestra.memory_class(self._settings.history_length)
        for step in range(1, self._settings.max_steps + 1):
            self._callers = {}
            self._ledger.open_turn()
            turn = Turn(observation, step, memory, self._sample)
            try:
                action = await self._orchestra.run(turn)
            except TurnOver:
                if not turn.done:
                    raise
            self._info.update(turn.info)
            if turn.done:
                return
            self.waiting_for = f"the environment's step {step}"
            outcome = await self._env.outcome("step", action)
            self._info.update(outcome.info)
            self._ledger.step(outcome, self._callers)
            memory.store(observation.text, str(action))
            if outcome.done:
                return
            observation = outcome.observation or observation

    async def _sample(self, turn: Turn, agent_id: str, variables: Mapping[str, Any]) -> Projection:
        """Sample one reply and apply it (parallel sampling: n episodes of a task, one reply a call)."""
        self._speakers.add(asyncio.current_task())
        seat = self._seat(agent_id)
        call, callers = len(self._callers), self._callers
        callers[call] = agent_id
        place = turn.reserve()
        entries, heard = turn.entries, len(self._samples)
        seen = await self._env.observation("observe", agent_id) if self._env.has_observe else turn.observation
        prompt = seat.prompts.build(_variables(seen, turn.step, variables), entries, turn.memory)
        await asyncio.sleep(0)  # calls started together build their prompts before any of them is answered
        p = self.plan
        seed = stable_seed(self._settings.seed, p.step, p.validate, p.uid, p.index, agent_id, turn.step, call, 0)
        self.waiting_for = f"the reply of {agent_id} (turn {turn.step}, call {call})"
        generation = await self._generate(seat.binding, prompt.ids, seed, f"{p.traj_uid}/{turn.step}.{call}")
        text = decode(seat.binding.tokenizer, generation.token_ids)
        projection = seat.agent.project(text)
        if self._over:
            raise TurnOver(f"{agent_id} answered after the episode had ended")
        b = seat.binding
        self._samples.append(
            Sample(
                agent_id,
                b.policy_id,
                b.wg_id,
                turn.step,
                call,
                0,
                prompt.text,
                prompt.ids,
                generation,
                text,
                projection.action,
                projection.valid,
                projection.fields,
                prompt.dropped,
                b.pad_token_id,
                seed,
                p.sampling_of(b).max_tokens,
                str(seen.info.get("anchor", seen.text)),
                heard=heard,
                order=len(self._samples),
            )
        )
        turn.record(place, Entry(agent_id, projection.text or strip_thinking(text), projection.action))
        if self._env.has_act:
            self.waiting_for = f"the environment's reaction to {agent_id} (turn {turn.step}, call {call})"
            outcome = await self._env.outcome("act", agent_id, projection.action)
            self._info.update(outcome.info)
            self._ledger.act(outcome, callers, call, turn.step)
            turn.done = turn.done or outcome.done
        return projection

    async def _generate(self, binding: AgentBinding, prompt_ids: tuple[int, ...], seed: int, request_id: str) -> Generation:
        request = GenerateRequest(prompt_ids, self.plan.sampling_of(binding), 1, binding.adapter, seed, request_id)
        limit = self._settings.call_timeout_s
        try:
            async with asyncio.timeout(limit) as clock:
                replies = await binding.client.generate(request)
        except TimeoutError as error:
            if not clock.expired():
                raise
            raise RolloutError(
                f"no reply for {binding.agent_id} within rollout.call_timeout_s={limit:g} s (policy {binding.policy_id})"
            ) from error
        if len(replies) != 1:
            raise RolloutError(f"asked the engine of {binding.policy_id} for 1 reply, got {len(replies)}")
        reply = replies[0]
        if reply.stop_reason == "abort" or not reply.token_ids:
            raise RolloutError(f"the engine of {binding.policy_id} returned an aborted or empty reply for {binding.agent_id}")
        if len(reply.log_probs) != len(reply.token_ids):
            raise RolloutError(
                f"the engine of {binding.policy_id} returned {len(reply.token_ids)} tokens but {len(reply.log_probs)} log-probs"
            )
        return reply

    def _seat(self, agent_id: str) -> Seat:
        seat = self._seats.get(agent_id)
        if seat is None:
            raise AgentSystemError(
                f"no agent {agent_id!r} in this run{suggestion(agent_id, self._seats)}; agents: {', '.join(self._seats)} "
                "(turn.act and Outcome.local name agents, BaseOrchestra.agents lists them)"
            )
        return seat


def _variables(seen: Observation, step: int, variables: Mapping[str, Any]) -> dict[str, Any]:
    return {**seen.info, "env_prompt": seen.text, "step": step, **variables}
