"""An agent behind an API, without a policy: chat messages go to a server, and its replies are text
that is not trained on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from agent_system.agent import BaseAgent, Entry, Message
from agent_system.memory import Memory
from agent_system.rollout.prompt import Prompt
from verl.protocol.generate import Generation, RolloutError, SamplingParams

if TYPE_CHECKING:
    # aiohttp, which teams without an API do not need
    from agent_system.rollout.endpoint import (
        Answer,
        Endpoint,
    )


@dataclass(frozen=True, kw_only=True)
class RemoteGeneration(Generation):
    """A reply without token ids.

    Attributes:
        text: the reply.
        prompt_tokens, reply_tokens: the server's counts; 0 where it gives none.
        retries: number of failed requests before this reply.
        waited_s: seconds in which the request waited for `max_concurrent_requests`; no part of
            equality.
    """

    text: str = ""
    prompt_tokens: int = 0
    reply_tokens: int = 0
    retries: int = 0
    waited_s: float = field(default=0.0, compare=False)


@dataclass(frozen=True)
class RemoteBinding:
    """As `AgentBinding`, for an agent behind an API.

    Attributes:
        agent_id: the agent.
        policy_id: id in place of a policy's in records.
        endpoint: its server.
        sampling, val_sampling: sampling of training and validation episodes.
    """

    agent_id: str
    policy_id: str
    endpoint: Endpoint
    sampling: SamplingParams
    val_sampling: SamplingParams
    wg_id: str = "api"
    trained: bool = False
    pad_token_id: int = 0
    structured: bool = False

    async def replies(
        self, prompt: Prompt, sampling: SamplingParams, n: int, seed: int, request_id: str, priority: int = 0
    ) -> Sequence[Generation]:
        """Request `n` replies, each with its own request and seed; failed ones are replies with
        stop reason `abort`.

        Results of tools are sent as the user's: without the calls, which a program's other agents
        made, servers refuse them. Raises RolloutError when all fail.
        """
        messages: list[Message] = [
            {**m, "role": "user"} if m["role"] == "tool" else m for m in prompt.messages
        ]
        requests = [self.endpoint.ask(messages, sampling, seed=seed + i, priority=priority) for i in range(n)]
        answers: list[Answer | BaseException] = await asyncio.gather(*requests, return_exceptions=True)
        errors = [answer for answer in answers if isinstance(answer, BaseException)]
        if errors and (len(errors) == n or not all(isinstance(error, RolloutError) for error in errors)):
            raise errors[0]
        return [_generation(answer, sampling.stop) for answer in answers]

    def text_of(self, generation: Generation, prompt: str = "") -> str:
        """Return the text of the reply."""
        assert isinstance(generation, RemoteGeneration)
        return generation.text


class MessageBuilder:
    """Builds the prompts of an agent behind an API. They are not shortened: the server enforces its
    own limit.
    """

    def __init__(self, agent: BaseAgent) -> None:
        self.agent = agent

    def of(self, agent: BaseAgent) -> MessageBuilder:
        """Return the builder of another state of the agent."""
        return MessageBuilder(agent)

    def build(self, variables: Mapping[str, Any], entries: Sequence[Entry], memory: Memory) -> Prompt:
        """Return the prompt of one call; arguments are those of `PromptBuilder.build`."""
        filled = {**variables, "team_context": self.agent.team_context(entries), "memory": memory.text(0)}
        messages = self.agent.messages(filled)
        return Prompt(
            "\n\n".join(f"{m['role']}: {m['content']}" for m in messages), (), messages=tuple(messages)
        )


def _generation(answer: Answer | BaseException, stop: Sequence[str]) -> RemoteGeneration:
    """Return the reply, cut after the first text of `stop`. Servers would leave the stop text out,
    so `stop` is not sent to them.
    """
    if isinstance(answer, BaseException):
        return RemoteGeneration((), (), "abort")
    ends = [at + len(end) for end in stop if (at := answer.text.find(end)) >= 0]
    if ends:
        answer = replace(answer, text=answer.text[: min(ends)], stop_reason="stop")
    return RemoteGeneration(
        (), (), answer.stop_reason, text=answer.text,
        prompt_tokens=answer.prompt_tokens, reply_tokens=answer.reply_tokens, retries=answer.retries,
        waited_s=answer.waited_s,
    )  # fmt: skip
