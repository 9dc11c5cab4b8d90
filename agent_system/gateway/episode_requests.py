"""The requests of one episode: each becomes calls of an agent in the current turn."""

from __future__ import annotations

import asyncio
import secrets
from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import Any

from agent_system.errors import AgentSystemError
from agent_system.gateway.chat_request import FREE, REFUSED, ChatRequest
from agent_system.gateway.completion import CHAT, Completion
from agent_system.gateway.conversations import AgentConversations
from agent_system.gateway.errors import Refusal
from agent_system.gateway.prompt_continuation import BuiltPrompt
from agent_system.gateway.request_fields import Notices
from agent_system.gateway.responder import OVER, PendingRequest
from agent_system.gateway.responses import RESPONSE, ResponseStore
from agent_system.gateway.structured_output import structure_refusal
from agent_system.rollout.call import Call
from agent_system.rollout.episode import Episode
from agent_system.rollout.program_call import ProgramCalls
from agent_system.rollout.prompt import Prompt
from agent_system.turn import TurnOver
from verl.protocol.generate import SamplingParams, StructureError
from verl.trainer.config.gateway import GatewayConfig
from verl.utils.names import did_you_mean, slug

CLOSE_TIMEOUT_S = 10.0
ENABLE_STRUCTURED = "set actor_rollout_ref.rollout.structured_outputs=true for it"
# Metrics, counts of an episode.
COUNTS = (
    "gateway/rewritten/client", "gateway/rewritten/template", "gateway/rewritten/tools", "gateway/overridden",
    "gateway/ignored",
    "gateway/repeated", "gateway/retried", "gateway/undelivered", "gateway/program_errors",
)  # fmt: skip


class EpisodeRequests:
    """Requests of an episode's program, in progress or answered.

    Attributes:
        key: authenticates them.
        agents: names of the agents.
        counts: see `COUNTS`.
        responses: see `ResponseStore`.
        failed: fails with the error of an engine, an agent or the environment, which ends the
            episode.
        structured: what becomes of a form that a request asks for: `gateway.structured`, in
            validation `mask` instead of `refuse`.
        environment_error: the last error of the environment that `Session.step` raised.
    """

    def __init__(
        self,
        episode: Episode,
        keys: GatewayConfig,
        new_conversations: Callable[[str], AgentConversations],
        notices: Notices,
    ) -> None:
        """Begin.

        Args:
            episode: the episode.
            keys: the keys under `gateway`.
            new_conversations: makes the conversations of an agent.
            notices: warns of fields that do not apply.
        """
        self.key = f"sk-{secrets.token_urlsafe(24)}"
        self.agents = tuple(episode.runtimes)
        self.counts: Counter[str] = Counter(dict.fromkeys(COUNTS, 0))
        self.responses = ResponseStore()
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        # Read once, or asyncio logs an error of it as never retrieved.
        self.failed.add_done_callback(lambda future: future.cancelled() or future.exception())
        # a validation trains nothing, so a mask on its tokens does no harm
        masks = episode.spec.validate and keys.structured == REFUSED
        self.structured = "mask" if masks else keys.structured
        self.environment_error: Exception | None = None
        self._refusal: Exception | None = None
        self._refused_at = 0
        self._episode = episode
        self._keys = keys
        self._notices = notices
        self._names = {slug(name): name for name in self.agents} | {name: name for name in self.agents}
        self._new_conversations = new_conversations
        self._conversations: dict[str, AgentConversations] = {}
        self._program_calls = ProgramCalls(episode, keys.max_open_calls)
        self._requests: defaultdict[bytes, list[PendingRequest]] = defaultdict(list)
        self._prompt_counts: Counter[tuple[str, str]] = Counter()
        self._calls: dict[str, list[Call]] = {}  # by the id of the answer
        self._open = True
        self._request_count = 0

    @property
    def unanswered(self) -> Exception | None:
        """The error of the last request that got one, unless a request that came later has been
        answered.
        """
        # an answer to an earlier request does not count: the program does not have the later one
        answered = any(pending.number > self._refused_at for pending in self._delivered())
        return None if answered else self._refusal

    @property
    def delivered_any(self) -> bool:
        """Whether the program has got a reply."""
        return bool(self._delivered())

    def agent(self, name: str) -> str:
        """Return the agent of a name or a slug. Raise Refusal naming the agents."""
        if name not in self._names:
            agents = ", ".join(self.agents)
            raise Refusal(
                f"no agent {name!r:.80}{did_you_mean(name, self._names)}; the model is one of: {agents}",
                404,
                "model_not_found",
                "model",
            )
        return self._names[name]

    def start(
        self, agent_id: str, request: ChatRequest, body: bytes, retried: bool, connected: Callable[[], bool]
    ) -> PendingRequest:
        """Return the request of a body: a new one, or with `retried` the one that the client did
        not get an answer to.

        Args and raises as in `Responder.start`.
        """
        if not self._open or self._episode.turn is None or self._episode.turn.done:
            raise Refusal(OVER, code="episode_over")
        same_body = self._requests[blake2b(agent_id.encode() + b"\0" + body, digest_size=16).digest()]
        # Client libraries mark a request that they send again. A body that is sent twice without
        # the mark is two requests: programs sample several replies to a prompt in this way.
        if retried and same_body:
            self.counts["gateway/retried"] += 1
            unanswered = [
                pending
                for pending in same_body
                if not (self._program_calls.heard(pending.replies) or pending.connected())
            ]
            pending = (unanswered or same_body[-1:])[0]
            pending.connected = connected
            return pending
        self.counts["gateway/repeated"] += bool(same_body)
        if agent_id not in self._conversations:
            self._conversations[agent_id] = self._new_conversations(agent_id)
        conversations = self._conversations[agent_id]
        sampling, overridden = self._sampling(agent_id, conversations, request)
        built = conversations.prompt_of(request)
        self._note(agent_id, request, built, overridden)
        self._request_count += 1
        pending = PendingRequest(connected, number=self._request_count)
        program = _program(request, built, overridden)
        pending.task = asyncio.create_task(
            self._generate(pending, agent_id, conversations, request, built, sampling, program)
        )
        # nobody may be left to read it
        pending.task.add_done_callback(lambda task: task.cancelled() or task.exception())
        same_body.append(pending)
        return pending

    def _sampling(
        self, agent_id: str, conversations: AgentConversations, request: ChatRequest
    ) -> tuple[SamplingParams, tuple[str, ...]]:
        """Return the parameters of a request, and its fields for which the run's values are used."""
        defaults = self._episode.spec.sampling_of(self._episode.runtimes[agent_id].binding)
        sampling, overridden = conversations.sampling(request, defaults)
        if overridden and self._keys.client_sampling == "refuse":
            raise Refusal(
                f"{', '.join(overridden)} differs from the run's and "
                "gateway.client_sampling=refuse; leave it out",
                param=overridden[0],
            )
        structure = ""
        if self.structured != FREE:
            structure = conversations.structure(request, ENABLE_STRUCTURED)
        return replace(sampling, structure=structure), overridden

    def _note(
        self, agent_id: str, request: ChatRequest, built: BuiltPrompt, overridden: tuple[str, ...]
    ) -> None:
        """Count and report what does not apply, and a prompt that does not go on from sampled
        tokens.
        """
        if overridden:
            self.counts["gateway/overridden"] += 1
            self._notices.overridden(overridden)
        if request.ignored:
            self.counts["gateway/ignored"] += 1
            self._notices.ignored(request.ignored)
        if built.rewritten:
            self.counts[f"gateway/rewritten/{built.rewritten}"] += 1
        if built.difference:
            self._notices.rewritten(agent_id, built.difference)

    async def _generate(
        self,
        pending: PendingRequest,
        agent_id: str,
        conversations: AgentConversations,
        request: ChatRequest,
        built: BuiltPrompt,
        sampling: SamplingParams,
        program: Mapping[str, Any],
    ) -> Completion:
        seed = self._seed(agent_id, built.prompt)
        try:
            replies = await self._program_calls.reply_to(
                agent_id,
                built.prompt,
                sampling,
                n=request.n,
                seed=seed,
                client_seed=request.seed,
                program=program,
            )
        # The environment has ended the episode while the request waited.
        except TurnOver as error:
            raise Refusal(OVER, code="episode_over") from error
        # A fault of the request's own form, which ends no episode.
        except StructureError as error:
            raise structure_refusal(request, error) from error
        except Exception as error:
            # of the engine, of an agent's projection, or of the environment's act
            self._fail(error)
            raise Refusal(f"{type(error).__name__}: {error}", 503, "generation_failed") from error
        pending.replies = replies
        first = replies[0][0]
        answer_id = f"chatcmpl-{self.key[3:11]}-{first.turn}-{first.number}"
        self._calls[answer_id] = [call for call, _ in replies]
        return conversations.answer(request, built, replies, answer_id)

    def _seed(self, agent_id: str, prompt: Prompt) -> tuple[int | str, ...]:
        """Return the parts of the seed of a request; none for those of turn and call.

        With `gateway.seed_by=prompt` it does not depend on the order in which concurrent requests
        arrive.
        """
        if self._keys.seed_by != "prompt":
            return ()
        content = array("i", prompt.ids).tobytes() or prompt.text.encode()
        digest = blake2b(content, digest_size=16).hexdigest()
        earlier = self._prompt_counts[agent_id, digest]
        self._prompt_counts[agent_id, digest] += 1
        return ("prompt", digest, earlier)

    def deliver(self, pending: PendingRequest) -> None:
        """Count the replies of a request as heard."""
        self._program_calls.deliver(pending.replies)

    def withdraw(self, pending: PendingRequest) -> None:
        """Undo one `deliver`: that client has gone before it got anything."""
        self._program_calls.withdraw(pending.replies)

    def leave(self, pending: PendingRequest) -> None:
        """Do nothing: a client that has left may fetch the reply by a marked retry."""

    def refuse(self, error: Exception) -> None:
        """Note that a request gets an error."""
        self._refusal = error
        self._refused_at = self._request_count

    def local_rewards(self, rewards: Mapping[int | str, float]) -> dict[int | str, float]:
        """Return local rewards by call number or agent: ids of answers, of either kind, stand for
        their calls.

        Raises AgentSystemError for an answer of an earlier turn.
        """
        totals: dict[int | str, float] = {}
        turn = self._episode.turn
        for name, reward in rewards.items():
            calls = self._calls.get(completion_id(name), ()) if isinstance(name, str) else ()
            if any(turn is None or call.turn != turn.step for call in calls):
                raise AgentSystemError(f"Outcome.local names the answer {name}, which is of an earlier turn")
            targets: list[int | str] = [call.number for call in calls] or [name]
            # a call may be named by its answer and by its number
            for target in targets:
                totals[target] = totals[target] + reward if target in totals else reward
        return totals

    async def close(self) -> None:
        """End the episode for its clients: requests in progress are cancelled, later ones refused."""
        self._open = False
        requests = self._all()
        tasks = [pending.task for pending in requests if not pending.task.done()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=CLOSE_TIMEOUT_S)
        self.counts["gateway/undelivered"] += sum(
            len(pending.replies) for pending in requests if not self._program_calls.heard(pending.replies)
        )

    def _all(self) -> list[PendingRequest]:
        return [pending for same_body in self._requests.values() for pending in same_body]

    def _delivered(self) -> list[PendingRequest]:
        return [pending for pending in self._all() if self._program_calls.heard(pending.replies)]

    def _fail(self, error: Exception) -> None:
        if not self.failed.done():
            self.failed.set_exception(error)


def _program(request: ChatRequest, built: BuiltPrompt, overridden: Sequence[str]) -> dict[str, Any]:
    """Return the facts of a request for trajectory files, see `SampleRequest.program`."""
    facts: dict[str, Any] = {"api": request.api}
    if built.parent is not None:
        facts |= {"parent": list(built.parent), "shared": built.shared}
    if built.rewritten:
        facts["rewritten"] = built.rewritten
    if overridden:
        facts["overridden"] = list(overridden)
    return facts


def completion_id(name: str) -> str:
    """Return the id of a chat completion for that of an answer of any kind."""
    name = name.removeprefix(RESPONSE)
    return name if name.startswith(CHAT) else CHAT + name
