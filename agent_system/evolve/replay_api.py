"""Replies of servers that are kept, as those of engines are: a server is paid once for a request."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

from agent_system.agent import Message
from agent_system.evolve.replay import ReplayMemory
from agent_system.rollout.endpoint import Answer, Endpoint
from agent_system.rollout.remote import RemoteGeneration
from verl.protocol.generate import Generation, SamplingParams


class ReplayEndpoint(Endpoint):
    """An `Endpoint` that answers requests that were made before from memory.

    A server may reply to equal requests differently; the kept reply is one that it gave.
    """

    def __init__(self, endpoint: Endpoint, memory: ReplayMemory) -> None:
        """Ask the server of `endpoint`, over its connections."""
        self.agent_id = endpoint.agent_id
        self.config = endpoint.config
        self._endpoint = endpoint
        self._memory = memory

    async def close(self) -> None:
        """Close the connections."""
        await self._endpoint.close()

    async def ask(
        self,
        messages: Sequence[Message],
        sampling: SamplingParams,
        *,
        seed: int,
        retries: int | None = None,
        priority: int = 0,
    ) -> Answer:
        """Return one reply. Arguments and errors are those of `Endpoint.ask`."""
        # not the address, at which a search that goes on may find the server elsewhere
        server = [self.agent_id, self.config.model, self.config.extra_body]
        what = [server, list(messages), repr(sampling), seed]
        key = hashlib.blake2b(json.dumps(what, default=repr).encode(), digest_size=16).hexdigest()

        async def request() -> list[Generation]:
            answer = await self._endpoint.ask(
                messages, sampling, seed=seed, retries=retries, priority=priority
            )
            return [
                RemoteGeneration(
                    (),
                    (),
                    answer.stop_reason,
                    text=answer.text,
                    prompt_tokens=answer.prompt_tokens,
                    reply_tokens=answer.reply_tokens,
                    retries=answer.retries,
                )
            ]

        (reply,) = await self._memory.reply(key, request())
        assert isinstance(reply, RemoteGeneration), "the key is that of a server's reply"
        return Answer(
            reply.text,
            "length" if reply.stop_reason == "length" else "stop",
            reply.prompt_tokens,
            reply.reply_tokens,
            reply.retries,
        )
