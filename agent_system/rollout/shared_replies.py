"""One request to the engine for a reply that several episodes share (`rollout.repeat_calls`)."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from agent_system.rollout.binding import AgentBinding
from verl.protocol.generate import GenerateRequest, Generation, RolloutClient

REMEMBERED = 4096
Binding = TypeVar("Binding")


@dataclass
class _Reply:
    """The task of a request; how many have asked for its reply, and how many wait for it."""

    task: asyncio.Task[list[Generation]]
    requests: int = 0
    waiting: int = 0


class SharedReplies:
    """A `RolloutClient` that sends equal requests once: the first one is sent, and later ones get its
    replies, as many as `shared_by` together.

    A request that fails is no answer to a later one, and one that nobody waits for any more is
    cancelled.
    """

    def __init__(self, client: RolloutClient, shared_by: int) -> None:
        self._client = client
        self._shared_by = shared_by
        self._replies: OrderedDict[Any, _Reply] = OrderedDict()

    async def generate(self, request: GenerateRequest) -> list[Generation]:
        """Return the replies. Raises as the client."""
        key = replace(request, request_id="", priority=0)
        reply = self._replies.get(key)
        if reply is None:
            reply = _Reply(asyncio.create_task(self._client.generate(request)))
            self._replies[key] = reply
            if len(self._replies) > REMEMBERED:
                self._replies.popitem(last=False)
        reply.requests += 1
        reply.waiting += 1
        try:
            replies = await asyncio.shield(reply.task)
        except BaseException:
            if reply.task.done() or reply.waiting == 1:
                reply.task.cancel()
                self._forget(key, reply)
            raise
        finally:
            reply.waiting -= 1
        if reply.requests == self._shared_by:
            self._forget(key, reply)
        return replies

    def _forget(self, key: GenerateRequest, reply: _Reply) -> None:
        if self._replies.get(key) is reply:
            del self._replies[key]


def with_shared_replies(bindings: Mapping[str, Binding], repeats: Mapping[str, int]) -> dict[str, Binding]:
    """Return the bindings; those of the agents in `repeats` send equal requests once."""
    shared = dict(bindings)
    for agent_id, count in repeats.items():
        binding = bindings.get(agent_id)
        if isinstance(binding, AgentBinding):
            client = SharedReplies(binding.client, count)
            shared[agent_id] = replace(binding, client=client)  # type: ignore[assignment]
    return shared
