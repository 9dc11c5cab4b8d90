"""A saved team for any number of clients: each agent is a model, and so is the whole team."""

from __future__ import annotations

import asyncio
import json
import math
import secrets
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from itertools import count
from typing import Any, ClassVar

from agent_system.environment import Observation
from agent_system.gateway.chat_request import ChatRequest
from agent_system.gateway.completion import Completion
from agent_system.gateway.conversations import AgentConversations
from agent_system.gateway.errors import Refusal
from agent_system.gateway.prompt_continuation import continuation_of
from agent_system.gateway.request_fields import Notices
from agent_system.gateway.responder import PendingRequest
from agent_system.gateway.responses import ResponseStore
from agent_system.gateway.structured_output import structure_refusal
from agent_system.gateway.team_model import TeamModel
from agent_system.projection import raw_text
from agent_system.rollout.call import AgentRuntime, Call, EpisodeSpec, Reply
from agent_system.rollout.clock import EpisodeClock
from verl.protocol.generate import (
    EngineGoneError,
    Generation,
    RolloutError,
    SamplingParams,
    StructureError,
)
from verl.trainer.config.gateway import GatewayConfig
from verl.utils.names import did_you_mean, slug

KEPT_CONVERSATIONS = 1024  # of each agent
HONOURED = ("temperature", "top_p", "top_k")
LARGEST_TOP_K = 2**31 - 1
# logits divided by less are not finite; a reply under a lower temperature is greedy
COLDEST = 1e-6


class ServedTeam:
    """Answers requests to a team outside of episodes.

    Attributes:
        agents: names of the models.
        structured: a reply follows the form that a request asks for.
        responses: see `ResponseStore`.
        gone: fails with the error of an engine that has ended.
    """

    structured: ClassVar[str] = "mask"

    def __init__(
        self,
        runtimes: Mapping[str, AgentRuntime],
        keys: GatewayConfig,
        spec: EpisodeSpec,
        *,
        limit_s: float,
        team: TeamModel | None,
    ) -> None:
        """Set the team.

        Args:
            runtimes: the agents.
            keys: the keys under `gateway` of the run.
            spec: how they are sampled where a request says nothing.
            limit_s: `rollout.call_timeout_s`.
            team: the whole team; None if its environment takes no questions.
        """
        self.agents = (*runtimes, *([team.name] if team is not None else []))
        self.responses = ResponseStore()
        self.gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._runtimes = runtimes
        self._spec = spec
        self._limit_s = limit_s
        self._team = team
        self._names = {slug(name): name for name in self.agents} | {name: name for name in self.agents}
        self._conversations = {
            name: AgentConversations(continuation_of(runtime.binding, keys), KEPT_CONVERSATIONS)
            for name, runtime in runtimes.items()
        }
        self._numbers = count()
        self._notices = Notices()

    def agent(self, name: str) -> str:
        """Return the model of a name or a slug. Raise Refusal naming the models."""
        if name not in self._names:
            models = ", ".join(self.agents)
            hint = did_you_mean(name, self._names)
            raise Refusal(
                f"no model {name!r:.80}{hint}; the model is one of: {models}", 404, "model_not_found", "model"
            )
        return self._names[name]

    def start(
        self, agent_id: str, request: ChatRequest, body: bytes, retried: bool, connected: Callable[[], bool]
    ) -> PendingRequest:
        """Return the request, which is being answered. Raises Refusal."""
        team = self._team if self._team is not None and agent_id == self._team.name else None
        work = self._answer(agent_id, request) if team is None else team.answer(request, _new_id())
        self._notices.ignored([*request.ignored, *(team.ignored(request) if team is not None else ())])
        pending = PendingRequest(connected)
        pending.task = asyncio.create_task(self._watched(work))
        # the client may have left
        pending.task.add_done_callback(lambda task: task.cancelled() or task.exception())
        return pending

    def deliver(self, pending: PendingRequest) -> None:
        """Do nothing: nothing is trained."""

    def withdraw(self, pending: PendingRequest) -> None:
        """Do nothing, as for `deliver`."""

    def leave(self, pending: PendingRequest) -> None:
        """End the generation for a client that has left."""
        pending.task.cancel()

    def refuse(self, error: Exception) -> None:
        """Do nothing: the client alone is told."""

    async def _watched(self, work: Awaitable[Completion]) -> Completion:
        """Return the answer; note an engine that has ended."""
        try:
            return await work
        except EngineGoneError as error:
            if not self.gone.done():
                self.gone.set_exception(error)
            raise Refusal(str(error), 503, "engine_gone") from error

    def _answer(self, agent_id: str, request: ChatRequest) -> Awaitable[Completion]:
        runtime = self._runtimes[agent_id]
        conversations = self._conversations[agent_id]
        defaults = client_sampling(request.sampling, self._spec.sampling_of(runtime.binding))
        sampling, overridden = conversations.sampling(request, defaults)
        if name := next((name for name in overridden if name not in HONOURED), None):
            raise Refusal(f"{name} is not supported; {', '.join(HONOURED)} are", param=name)
        structure = conversations.structure(
            request, "pip install 'xgrammar>=0.2.8,<0.3' and serve the team again"
        )
        built = conversations.prompt_of(request)
        numbers = [next(self._numbers) for _ in range(request.n)]
        seed = secrets.randbits(63) if request.seed is None else request.seed
        sampling = replace(sampling, structure=structure)
        observation = Observation("")
        calls = [
            Call(
                spec=self._spec,
                agent_id=agent_id,
                runtime=runtime,
                turn=1,
                number=number,
                place=0,
                observation=observation,
                prompt=built.prompt,
                prior_replies=0,
                seed=seed,
                before=runtime.agent,
                own_sampling=sampling,
            )
            for number in numbers
        ]

        async def work() -> Completion:
            try:
                generations = await calls[0].generate(request.n, EpisodeClock(math.inf, self._limit_s))
            except EngineGoneError:
                raise
            except StructureError as error:
                raise structure_refusal(request, error) from error
            except RolloutError as error:
                raise Refusal(str(error), 503, "generation_failed") from error
            replies = [
                (call, _reply(call, reply))
                for call, reply in zip(calls, generations, strict=True)
                if reply is not None
            ]
            return conversations.answer(request, built, replies, _new_id())

        return work()


def client_sampling(fields: Mapping[str, Any], defaults: SamplingParams) -> SamplingParams:
    """Return the parameters of an agent, with those of `HONOURED` in `ChatRequest.sampling`. Raise
    Refusal for a value out of range.
    """
    values = {name: value for name, value in fields.items() if name in HONOURED}
    for name, value in values.items():
        number = type(value) is int or (type(value) is float and name != "top_k")
        allowed = {
            "temperature": number and 0 <= value <= 100,
            "top_p": number and 0 < value <= 1,
            "top_k": number and (1 <= value <= LARGEST_TOP_K or value == -1),
        }
        if not allowed[name]:
            expected = {
                "temperature": "a number from 0 to 100",
                "top_p": "a number above 0, at most 1",
                "top_k": f"an integer from 1 to {LARGEST_TOP_K}, or -1",
            }
            raise Refusal(f"{name} must be {expected[name]}, found {json.dumps(value)[:80]}", param=name)
    changed = replace(defaults, **values)
    return changed if changed.temperature >= COLDEST else replace(changed, temperature=0.0)


def _new_id() -> str:
    """Return the id of an answer, by which only its client can continue it."""
    return f"chatcmpl-{secrets.token_hex(12)}"


def _reply(call: Call, generation: Generation) -> Reply:
    """Return a reply without the agent's projection, which is for the environment."""
    text = call.runtime.binding.text_of(generation)
    return Reply(generation, text, raw_text(text), call.runtime.agent)
