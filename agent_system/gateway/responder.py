"""A request that is in progress or answered, and what the HTTP server expects of that which answers
it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from agent_system.gateway.chat_request import ChatRequest
from agent_system.gateway.completion import Completion
from agent_system.gateway.errors import Refusal
from agent_system.gateway.responses import ResponseStore
from agent_system.rollout.call import Call, Reply

OVER = "the episode is over"


@dataclass(eq=False)
class PendingRequest:
    """A request, in progress or answered.

    Attributes:
        connected: whether the client that waits for it is still there.
        replies: what was sampled for it.
        number: its number in the order of arrival, from 1.
        task: generates the answer.
    """

    connected: Callable[[], bool]
    number: int = 0
    replies: Sequence[tuple[Call, Reply]] = ()
    task: asyncio.Task[Completion] = field(init=False)

    async def answer(self) -> Completion:
        """Return the answer. Raise Refusal when there is none; a client that leaves does not end
        the task.
        """
        await asyncio.wait([self.task])
        if self.task.cancelled():
            raise Refusal(OVER, code="episode_over")
        return self.task.result()


class Responder(Protocol):
    """What answers the requests that have a certain key: an episode, or a served team."""

    @property
    def agents(self) -> Sequence[str]:
        """Names of the models."""

    @property
    def structured(self) -> str:
        """What becomes of a form that a request asks for: `refuse`, `mask`, or `free`, which
        samples any reply.
        """

    @property
    def responses(self) -> ResponseStore:
        """Answers of `/v1/responses` that later requests name."""

    def agent(self, name: str) -> str:
        """Return the model that a request names. Raise Refusal if there is none."""

    def start(
        self, agent_id: str, request: ChatRequest, body: bytes, retried: bool, connected: Callable[[], bool]
    ) -> PendingRequest:
        """Begin to answer a request.

        Args:
            agent_id: the model, see `agent`.
            request: the request.
            body: its path and body, equal for a request that is sent again.
            retried: the client sends it again.
            connected: whether the client is still there.

        Raises Refusal.
        """

    def deliver(self, pending: PendingRequest) -> None:
        """Note that the client gets the answer."""

    def withdraw(self, pending: PendingRequest) -> None:
        """Undo one `deliver`: that client has gone before it got anything."""

    def leave(self, pending: PendingRequest) -> None:
        """Note that nobody waits for the request any more."""

    def refuse(self, error: Exception) -> None:
        """Note that a request gets an error."""
