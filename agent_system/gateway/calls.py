"""The requests of one episode: each becomes calls of an agent in the current turn."""

from __future__ import annotations

import asyncio
import secrets
from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import replace
from hashlib import blake2b

from agent_system.errors import AgentSystemError
from agent_system.gateway.built import Built
from agent_system.gateway.chat import Chat
from agent_system.gateway.errors import Refusal
from agent_system.gateway.forms import impossible
from agent_system.gateway.reply import CHAT, Completion
from agent_system.gateway.request import COUNTS, OVER, Request
from agent_system.gateway.responses import RESPONSE
from agent_system.gateway.sampling import Notices
from agent_system.gateway.stored import Stored
from agent_system.gateway.wire import FREE, REFUSED, Ask
from agent_system.rollout.call import Call
from agent_system.rollout.runner import EpisodeRunner
from agent_system.turn import TurnOver
from verl.protocol.generate import SamplingParams, StructureError
from verl.trainer.config.gateway import GatewayConfig
from verl.utils.names import did_you_mean, slug

CLOSE_TIMEOUT_S = 10.0
ABLE = "set actor_rollout_ref.rollout.structured_outputs=true for it"


class EpisodeCalls:
    """Requests of an episode's program, in progress or answered.

    Attributes:
        key: authenticates them.
        agents: names of the agents.
        counts: see `COUNTS`.
        stored: see `Stored`.
        failed: fails with the error of an engine, an agent or the environment, which ends the episode.
        forms: what becomes of a form that a request asks for: `gateway.structured`, in validation `mask`
            instead of `refuse`.
        unanswered: the error of the last request that got one, unless a request that came later has been
            answered.
        heard: whether the program has got a reply.
        of_environment: the last error of the environment that `Session.step` raised.
    """

    def __init__(
        self, episode: EpisodeRunner, keys: GatewayConfig, chat: Callable[[str], Chat], notices: Notices
    ) -> None:
        """Begin.

        Args:
            episode: the episode.
            keys: the keys under `gateway`.
            chat: makes the conversations of an agent.
            notices: warns of fields that do not apply.
        """
        self.key = f"sk-{secrets.token_urlsafe(24)}"
        self.agents = tuple(episode.runtimes)
        self.counts: Counter[str] = Counter(dict.fromkeys(COUNTS, 0))
        self.stored = Stored()
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.failed.add_done_callback(lambda future: future.cancelled() or future.exception())
        self.forms = "mask" if episode.spec.validate and keys.structured == REFUSED else keys.structured
        self.unanswered: Exception | None = None
        self.heard = False
        self.of_environment: Exception | None = None
        self._refused_at = 0
        self._episode, self._keys, self._notices = episode, keys, notices
        self._names = {slug(name): name for name in self.agents} | {name: name for name in self.agents}
        self._new_chat = chat
        self._chats: dict[str, Chat] = {}
        self._slots = asyncio.Semaphore(keys.max_open_calls)
        self._requests: defaultdict[bytes, list[Request]] = defaultdict(list)
        self._asked: Counter[tuple[str, str]] = Counter()
        self._calls: dict[str, list[Call]] = {}
        self._open = True
        self._came = 0

    def agent(self, name: str) -> str:
        """Return the agent of a name or a slug. Raise Refusal naming the agents."""
        if name not in self._names:
            known = ", ".join(self.agents)
            raise Refusal(
                f"no agent {name!r:.80}{did_you_mean(name, self._names)}; the model is one of: {known}",
                404,
                "model_not_found",
                "model",
            )
        return self._names[name]

    def start(
        self, agent_id: str, ask: Ask, body: bytes, retried: bool, connected: Callable[[], bool]
    ) -> Request:
        """Return the request of a body: a new one, or with `retried` the one that the client did not get an
        answer to.

        Raises Refusal.
        """
        if not self._open or self._episode.turn is None or self._episode.turn.done:
            raise Refusal(OVER, code="episode_over")
        same = self._requests[blake2b(agent_id.encode() + b"\0" + body, digest_size=16).digest()]
        if retried and same:
            self.counts["gateway/retried"] += 1
            lost = [request for request in same if not (request.delivered or request.connected())]
            request = (lost or same[-1:])[0]
            request.connected = connected
            return request
        self.counts["gateway/repeated"] += bool(same)
        chat = self._chats.get(agent_id) or self._chats.setdefault(agent_id, self._new_chat(agent_id))
        own = self._episode.spec.sampling_of(self._episode.runtimes[agent_id].binding)
        sampling, other = chat.sampling(ask, own)
        if other and self._keys.client_sampling == "refuse":
            raise Refusal(
                f"{', '.join(other)} differs from the run's and gateway.client_sampling=refuse; leave it out",
                param=other[0],
            )
        sampling = replace(sampling, structure="" if self.forms == FREE else chat.structure(ask, ABLE))
        built = chat.read(ask)
        if other:
            self.counts["gateway/overridden"] += 1
            self._notices.overridden(other)
        if ask.ignored:
            self.counts["gateway/ignored"] += 1
            self._notices.ignored(ask.ignored)
        if built.rewritten:
            self.counts[f"gateway/rewritten/{built.rewritten}"] += 1
        if built.why:
            self._notices.rewritten(agent_id, built.why)
        self._came += 1
        request = Request(connected, number=self._came)
        request.task = asyncio.create_task(self._generate(request, agent_id, chat, ask, built, sampling))
        # nobody may be left to read it
        request.task.add_done_callback(lambda task: task.cancelled() or task.exception())
        same.append(request)
        return request

    async def _generate(
        self, request: Request, agent_id: str, chat: Chat, ask: Ask, built: Built, sampling: SamplingParams
    ) -> Completion:
        seed: tuple[int | str, ...] = ()
        if self._keys.seed_by == "prompt":
            ids = built.prompt.ids
            content = array("i", ids).tobytes() or built.prompt.text.encode()
            asked = blake2b(content, digest_size=16).hexdigest()
            seed = ("prompt", asked, self._asked[agent_id, asked])
            self._asked[agent_id, asked] += 1
        try:
            replies = await self._episode.reply_to(
                agent_id, built.prompt, sampling, self._slots, n=ask.n, seed=seed, also=ask.seed
            )
        except TurnOver as error:
            raise Refusal(OVER, code="episode_over") from error
        except StructureError as error:
            raise impossible(ask, error) from error
        except Exception as error:  # of the engine, of an agent's projection, or of the environment's act
            self._fail(error)
            raise Refusal(f"{type(error).__name__}: {error}", 503, "generation_failed") from error
        request.replies = replies
        first = replies[0][0]
        name = f"chatcmpl-{self.key[3:11]}-{first.turn}-{first.number}"
        self._calls[name] = [call for call, _ in replies]
        return chat.answer(ask, built, replies, name)

    def deliver(self, request: Request) -> None:
        """Count the replies of a request as heard."""
        request.delivered = self.heard = True
        if request.number > self._refused_at:
            self.unanswered = None
        self._episode.deliver(request.replies)

    def withdraw(self, request: Request) -> None:
        """Undo `deliver`: the client has gone before it got anything."""
        request.delivered = False
        self._episode.withdraw(request.replies)

    def leave(self, request: Request) -> None:
        """Do nothing: a client that has left may fetch the reply by a marked retry."""

    def refuse(self, error: Exception) -> None:
        """Note that a request gets an error."""
        self.unanswered = error
        self._refused_at = self._came

    def local(self, rewards: Mapping[int | str, float]) -> dict[int | str, float]:
        """Return local rewards by call number or agent: ids of answers, of either kind, stand for their
        calls.

        Raises AgentSystemError for an answer of an earlier turn.
        """
        found: dict[int | str, float] = {}
        turn = self._episode.turn
        for name, reward in rewards.items():
            calls = self._calls.get(completion_id(name), ()) if isinstance(name, str) else ()
            if any(turn is None or call.turn != turn.step for call in calls):
                raise AgentSystemError(f"Outcome.local names the answer {name}, which is of an earlier turn")
            places: list[int | str] = [call.number for call in calls] or [name]
            for place in places:  # a call may be named by its answer and by its number
                found[place] = found[place] + reward if place in found else reward
        return found

    async def close(self) -> None:
        """End the episode for its clients: requests in progress are cancelled, later ones refused."""
        self._open = False
        tasks = [
            request.task for same in self._requests.values() for request in same if not request.task.done()
        ]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=CLOSE_TIMEOUT_S)
        asked = [request for same in self._requests.values() for request in same]
        self.counts["gateway/undelivered"] += sum(
            len(request.replies) for request in asked if not request.delivered
        )

    def _fail(self, error: Exception) -> None:
        if not self.failed.done():
            self.failed.set_exception(error)


def completion_id(name: str) -> str:
    """Return the id of a chat completion for that of an answer of any kind."""
    name = name.removeprefix(RESPONSE)
    return name if name.startswith(CHAT) else CHAT + name
