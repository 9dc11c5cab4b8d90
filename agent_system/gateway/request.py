"""A request of an episode's program, in progress or answered."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from agent_system.gateway.errors import Refusal
from agent_system.gateway.reply import Completion
from agent_system.rollout.call import Call, Reply

OVER = "the episode is over"
# Metrics, counts of an episode.
COUNTS = (
    "gateway/rewritten/client", "gateway/rewritten/template", "gateway/rewritten/tools", "gateway/overridden", "gateway/ignored",
    "gateway/repeated", "gateway/retried", "gateway/undelivered",
)  # fmt: skip


@dataclass(eq=False)
class Request:
    """A request.

    Attributes:
        connected: whether the client that waits for it is still there.
        replies: what was sampled for it.
        delivered: the client has got the answer.
        task: generates it.
    """

    connected: Callable[[], bool]
    replies: Sequence[tuple[Call, Reply]] = ()
    delivered: bool = False
    task: asyncio.Task[Completion] = field(init=False)

    async def answer(self) -> Completion:
        """Return the answer. Raise Refusal when there is none; a client that leaves does not end the task."""
        await asyncio.wait([self.task])
        if self.task.cancelled():
            raise Refusal(OVER, code="episode_over")
        return self.task.result()
