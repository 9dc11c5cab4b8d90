"""A saved team for any number of clients: each agent is a model, and so is the whole team."""

from __future__ import annotations

import asyncio
import math
import secrets
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from itertools import count
from typing import ClassVar

from agent_system.environment import Observation
from agent_system.gateway.bridge import bridge_of
from agent_system.gateway.chat import Chat
from agent_system.gateway.errors import Refusal
from agent_system.gateway.forms import impossible
from agent_system.gateway.reply import Completion
from agent_system.gateway.request import Request
from agent_system.gateway.sampling import HONOURED, Notices, client_sampling
from agent_system.gateway.stored import Stored
from agent_system.gateway.team_model import TeamModel
from agent_system.gateway.wire import Ask
from agent_system.projection import raw_text
from agent_system.rollout.call import AgentRuntime, Call, EpisodeSpec, Reply
from agent_system.rollout.clock import EpisodeClock
from verl.protocol.generate import EngineGoneError, Generation, RolloutError, StructureError
from verl.trainer.config.gateway import GatewayConfig
from verl.utils.names import did_you_mean, slug

KEPT_CONVERSATIONS = 1024  # of each agent


class ServedTeam:
    """Answers requests to a team outside of episodes.

    Attributes:
        agents: names of the models.
        forms: a reply follows the form that a request asks for.
        stored: see `Stored`.
        gone: fails with the error of an engine that has ended.
    """

    forms: ClassVar[str] = "mask"

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
        self.stored = Stored()
        self.gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._runtimes, self._spec, self._limit_s, self._team = runtimes, spec, limit_s, team
        self._names = {slug(name): name for name in self.agents} | {name: name for name in self.agents}
        self._chats = {
            name: Chat(bridge_of(runtime.binding, keys), KEPT_CONVERSATIONS)
            for name, runtime in runtimes.items()
        }
        self._numbers, self._notices = count(), Notices()

    def agent(self, name: str) -> str:
        """Return the model of a name or a slug. Raise Refusal naming the models."""
        if name not in self._names:
            known = ", ".join(self.agents)
            hint = did_you_mean(name, self._names)
            raise Refusal(
                f"no model {name!r:.80}{hint}; the model is one of: {known}", 404, "model_not_found", "model"
            )
        return self._names[name]

    def start(
        self, agent_id: str, ask: Ask, body: bytes, retried: bool, connected: Callable[[], bool]
    ) -> Request:
        """Return the request, which is being answered. Raises Refusal."""
        team = self._team if self._team is not None and agent_id == self._team.name else None
        work = self._generated(agent_id, ask) if team is None else team.answer(ask, _new_id())
        self._notices.ignored([*ask.ignored, *(team.ignored(ask) if team is not None else ())])
        request = Request(connected)
        request.task = asyncio.create_task(self._answered(work))
        # the client may have left
        request.task.add_done_callback(lambda task: task.cancelled() or task.exception())
        return request

    def deliver(self, request: Request) -> None:
        """Note that the client gets the answer."""
        request.delivered = True

    def withdraw(self, request: Request) -> None:
        """Undo `deliver`."""
        request.delivered = False

    def leave(self, request: Request) -> None:
        """End the generation for a client that has left."""
        request.task.cancel()

    def refuse(self, error: Exception) -> None:
        """Do nothing: the client alone is told."""

    async def _answered(self, work: Awaitable[Completion]) -> Completion:
        try:
            return await work
        except EngineGoneError as error:
            if not self.gone.done():
                self.gone.set_exception(error)
            raise Refusal(str(error), 503, "engine_gone") from error

    def _generated(self, agent_id: str, ask: Ask) -> Awaitable[Completion]:
        runtime, chat = self._runtimes[agent_id], self._chats[agent_id]
        sampling, other = chat.sampling(
            ask, client_sampling(ask.sampling, self._spec.sampling_of(runtime.binding))
        )
        if name := next((name for name in other if name not in HONOURED), None):
            raise Refusal(f"{name} is not supported; {', '.join(HONOURED)} are", param=name)
        structure = chat.structure(ask, "pip install 'xgrammar>=0.2.8,<0.3' and serve the team again")
        built, number = chat.read(ask), next(self._numbers)
        seed = secrets.randbits(63) if ask.seed is None else ask.seed
        sampling, seen = replace(sampling, structure=structure), Observation("")
        calls = [
            Call(
                self._spec,
                agent_id,
                runtime,
                1,
                n,
                0,
                seen,
                built.prompt,
                0,
                seed,
                runtime.agent,
                own_sampling=sampling,
            )
            for n in (number, *(next(self._numbers) for _ in range(ask.n - 1)))
        ]

        async def work() -> Completion:
            try:
                generations = await calls[0].generate(ask.n, EpisodeClock(math.inf, self._limit_s))
            except EngineGoneError:
                raise
            except StructureError as error:
                raise impossible(ask, error) from error
            except RolloutError as error:
                raise Refusal(str(error), 503, "generation_failed") from error
            replies = [
                (call, _whole(call, reply))
                for call, reply in zip(calls, generations, strict=True)
                if reply is not None
            ]
            return chat.answer(ask, built, replies, _new_id())

        return work()


def _new_id() -> str:
    """Return the id of an answer, by which only its client can continue it."""
    return f"chatcmpl-{secrets.token_hex(12)}"


def _whole(call: Call, generation: Generation) -> Reply:
    """Return a reply without the agent's projection, which is for the environment."""
    text = call.runtime.binding.text_of(generation)
    return Reply(generation, text, raw_text(text), call.runtime.agent)
