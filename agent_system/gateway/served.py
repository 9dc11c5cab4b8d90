"""A saved team for any number of clients: each agent is a model, and so is the whole team."""

from __future__ import annotations

import asyncio
import hmac
import math
import secrets
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, ClassVar

from aiohttp import web

from agent_system.environment import Observation
from agent_system.gateway.bridge import bridge_of
from agent_system.gateway.chat import Chat
from agent_system.gateway.errors import Refusal
from agent_system.gateway.reply import Choice, Completion
from agent_system.gateway.request import Request
from agent_system.gateway.sampling import HONOURED, client_sampling, impossible
from agent_system.gateway.server import Server, given_key
from agent_system.gateway.view import Viewer
from agent_system.gateway.wire import Ask
from agent_system.projection import raw_text
from agent_system.record import EpisodeRecord
from agent_system.rollout.call import AgentRuntime, Call, EpisodeSpec, Reply
from agent_system.rollout.clock import EpisodeClock
from verl.protocol.generate import EngineGoneError, Generation, RolloutError, StructureError
from verl.trainer.config.gateway import GatewayConfig
from verl.utils.names import did_you_mean, slug

KEPT_CONVERSATIONS = 1024  # of each agent, and of /v1/responses
# Fields of `Ask` that a team cannot fulfil, by their names in a request.
NOT_OF_A_TEAM = {"tools": "tools", "schema": "response_format", "forced": "tool_choice", "logprobs": "logprobs"}


@dataclass(frozen=True)
class TeamModel:
    """The whole team as a model.

    Attributes:
        name: of the model.
        ask: plays the episode of a question and returns its record, also when it failed.
    """

    name: str
    ask: Callable[[str], Awaitable[EpisodeRecord]]


class ServedTeam:
    """Answers requests to a team outside of episodes.

    Attributes:
        agents: names of the models.
        masks: requests may ask for a reply of a certain form.
        conversations: messages by the ids of answers of `/v1/responses`, the last ones.
        gone: fails with the error of an engine that has ended.
    """

    masks: ClassVar[bool] = True

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
        self.conversations: dict[str, list[Any]] = _Recent()
        self.gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._runtimes, self._spec, self._limit_s, self._team = runtimes, spec, limit_s, team
        self._names = {slug(name): name for name in self.agents} | {name: name for name in self.agents}
        self._chats = {name: Chat(bridge_of(runtime.binding, keys), KEPT_CONVERSATIONS) for name, runtime in runtimes.items()}
        self._numbers = count()

    def agent(self, name: str) -> str:
        """Return the model of a name or a slug. Raise Refusal naming the models."""
        if name not in self._names:
            known = ", ".join(self.agents)
            hint = did_you_mean(name, self._names)
            raise Refusal(f"no model {name!r:.80}{hint}; the model is one of: {known}", 404, "model_not_found", "model")
        return self._names[name]

    def start(self, agent_id: str, ask: Ask, body: bytes, retried: bool, connected: Callable[[], bool]) -> Request:
        """Return the request, which is being answered. Raises Refusal."""
        work = self._asked(ask) if self._team is not None and agent_id == self._team.name else self._generated(agent_id, ask)
        request = Request(connected)
        request.task = asyncio.create_task(self._answered(work))
        request.task.add_done_callback(lambda task: task.cancelled() or task.exception())  # the client may have left
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

    async def _answered(self, work: Awaitable[Completion]) -> Completion:
        try:
            return await work
        except EngineGoneError as error:
            if not self.gone.done():
                self.gone.set_exception(error)
            raise Refusal(str(error), 503, "engine_gone") from error

    def _generated(self, agent_id: str, ask: Ask) -> Awaitable[Completion]:
        runtime, chat = self._runtimes[agent_id], self._chats[agent_id]
        sampling, other = chat.sampling(ask, client_sampling(ask, self._spec.sampling_of(runtime.binding)))
        if name := next((name for name in other if name not in HONOURED), None):
            raise Refusal(f"{name} is not supported; {', '.join(HONOURED)} are", param=name)
        structure = chat.structure(ask, "pip install 'xgrammar>=0.2.8,<0.3' and serve the team again")
        built, number = chat.read(ask), next(self._numbers)
        seed = secrets.randbits(63) if ask.seed is None else ask.seed
        sampling, seen = replace(sampling, structure=structure), Observation("")
        calls = [
            Call(self._spec, agent_id, runtime, 1, n, 0, seen, built.prompt, 0, seed, runtime.agent, own_sampling=sampling)
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
            replies = [(call, _whole(call, reply)) for call, reply in zip(calls, generations, strict=True) if reply is not None]
            return chat.answer(ask, built, replies, _new_id())

        return work()

    def _asked(self, ask: Ask) -> Awaitable[Completion]:
        """Return the team's answer to the last message of the user."""
        team = self._team
        assert team is not None
        if unfit := [name for field, name in NOT_OF_A_TEAM.items() if getattr(ask, field)]:
            raise Refusal(
                f"{unfit[0]} is not supported by {team.name!r}, the whole team, which plays an episode as in validation; its agents "
                "support it",
                param=unfit[0],
            )
        views = Viewer(lambda text: text, False, False).views(ask.messages)
        question = next((str(view.message["content"]) for view in reversed(views) if view.role == "user"), "")
        if not question:
            raise Refusal(f"messages has no text of a user, which is the task of {team.name!r}", param="messages")

        async def work() -> Completion:
            records = await asyncio.gather(*(team.ask(question) for _ in range(ask.n)))
            return Completion(
                id=_new_id(),
                model=team.name,
                created=int(time.time()),
                prompt_tokens=sum(sample.prompt_tokens for record in records for sample in record.samples),
                choices=[_choice(record) for record in records],
            )

        return work()


class ServedServer(Server):
    """The HTTP server of a team, with one key for all clients, or none."""

    def __init__(self, team: ServedTeam, host: str, port: int, key: str) -> None:
        """Set the address; an empty key accepts any."""
        super().__init__(host, port, ends_left=True)
        self._team, self._key = team, key

    def _calls(self, request: web.Request) -> ServedTeam:
        given = given_key(request)
        if self._key and not hmac.compare_digest(given.encode("utf-8", "surrogateescape"), self._key.encode("utf-8", "surrogateescape")):
            raise Refusal("wrong API key", 401, "invalid_api_key")
        if not self._key and "Origin" in request.headers:  # any page in a browser of this machine can reach the loopback interface
            raise Refusal("a web page asks; serve the team with --api-key-env to answer those that know the key", 403, "no_api_key")
        return self._team


class _Recent(OrderedDict[str, Any]):
    """Forgets the oldest entries."""

    def __setitem__(self, name: str, value: Any) -> None:
        super().__setitem__(name, value)
        if len(self) > KEPT_CONVERSATIONS:
            self.popitem(last=False)


def _new_id() -> str:
    """Return the id of an answer, by which only its client can continue it."""
    return f"chatcmpl-{secrets.token_hex(12)}"


def _whole(call: Call, generation: Generation) -> Reply:
    """Return a reply without the agent's projection, which is for the environment."""
    text = call.runtime.binding.text_of(generation)
    return Reply(generation, text, raw_text(text), call.runtime.agent)


def _choice(record: EpisodeRecord) -> Choice:
    """Return the answer of an episode, with the replies of its agents as its thinking. Raise Refusal if it failed."""
    if record.failure is not None:
        raise Refusal(f"the episode failed: {record.failure}", 503, "episode_failed")
    said: Sequence[str] = [f"{sample.agent_id}: {sample.text}" for sample in record.committed]
    return Choice(record.answer, (), "\n\n".join(said), "stop", sum(sample.response_tokens for sample in record.samples))
