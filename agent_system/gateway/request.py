"""A request, in progress or answered, and what answers it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from agent_system.gateway.errors import Refusal
from agent_system.gateway.reply import Completion
from agent_system.gateway.stored import Stored
from agent_system.gateway.wire import Ask
from agent_system.rollout.call import Call, Reply

OVER = "the episode is over"
# Metrics, counts of an episode.
COUNTS = (
    "gateway/rewritten/client", "gateway/rewritten/template", "gateway/rewritten/tools", "gateway/overridden",
    "gateway/ignored",
    "gateway/repeated", "gateway/retried", "gateway/undelivered", "gateway/program_errors",
)  # fmt: skip


@dataclass(eq=False)
class Request:
    """A request.

    Attributes:
        connected: whether the client that waits for it is still there.
        replies: what was sampled for it.
        delivered: the client has got the answer.
        number: its place in the order of arrival, from 1.
        task: generates it.
    """

    connected: Callable[[], bool]
    number: int = 0
    replies: Sequence[tuple[Call, Reply]] = ()
    delivered: bool = False
    task: asyncio.Task[Completion] = field(init=False)

    async def answer(self) -> Completion:
        """Return the answer. Raise Refusal when there is none; a client that leaves does not end the task."""
        await asyncio.wait([self.task])
        if self.task.cancelled():
            raise Refusal(OVER, code="episode_over")
        return self.task.result()


class Answering(Protocol):
    """What answers the requests that have a certain key: an episode, or a served team."""

    @property
    def agents(self) -> Sequence[str]:
        """Names of the models."""

    @property
    def forms(self) -> str:
        """What becomes of a form that a request asks for: `refuse`, `mask`, or `free`, which samples any
        reply.
        """

    @property
    def stored(self) -> Stored:
        """Answers of `/v1/responses` that later requests name."""

    def agent(self, name: str) -> str:
        """Return the model that a request names. Raise Refusal if there is none."""

    def start(
        self, agent_id: str, ask: Ask, body: bytes, retried: bool, connected: Callable[[], bool]
    ) -> Request:
        """Return the request of a body; `retried` means that the client sends it again. Raise Refusal."""

    def deliver(self, request: Request) -> None:
        """Note that the client gets the answer."""

    def withdraw(self, request: Request) -> None:
        """Undo `deliver`: the client has gone before it got anything."""

    def leave(self, request: Request) -> None:
        """Note that nobody waits for the request any more."""

    def refuse(self, error: Exception) -> None:
        """Note that a request gets an error."""
