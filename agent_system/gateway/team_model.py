"""A saved team as one model: a request plays an episode, whose answer is the reply."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from agent_system.gateway.chat_request import ChatRequest
from agent_system.gateway.completion import Choice, Completion
from agent_system.gateway.errors import Refusal
from agent_system.gateway.messages import MessageNormalizer
from agent_system.record import EpisodeRecord

# Fields of `ChatRequest` that a team cannot fulfil, by their names in a request.
NOT_OF_A_TEAM = {
    "tools": "tools",
    "schema": "response_format",
    "forced": "tool_choice",
    "logprobs": "logprobs",
    "prompt": "prompt",
}
# Fields of `ChatRequest` without effect on the episode of a team, besides those of sampling.
OF_THE_RUN = ("max_tokens", "stop", "seed")


@dataclass(frozen=True)
class TeamModel:
    """The whole team as a model.

    Attributes:
        name: of the model.
        ask: plays the episode of a question and returns its record, also when it failed.
    """

    name: str
    ask: Callable[[str], Awaitable[EpisodeRecord]]

    def answer(self, request: ChatRequest, answer_id: str) -> Awaitable[Completion]:
        """Return what plays the episodes of the user's last message and makes the answer with the
        id `answer_id`.

        Raises Refusal for a request that a team cannot fulfil; the awaitable raises it for an
        episode that failed.
        """
        unsupported = [name for field, name in NOT_OF_A_TEAM.items() if getattr(request, field)]
        if unsupported:
            raise Refusal(
                f"{unsupported[0]} is not supported by {self.name!r}, the whole team, which plays "
                "an episode as in validation; its agents support it",
                param=unsupported[0],
            )
        messages = MessageNormalizer(lambda text: text, False, False).normalize(request.messages)
        texts = [str(message.fields["content"]) for message in messages if message.role == "user"]
        question = texts[-1] if texts else ""
        if not question:
            raise Refusal(
                f"messages has no text of a user, which is the task of {self.name!r}", param="messages"
            )

        async def work() -> Completion:
            records = await asyncio.gather(*(self.ask(question) for _ in range(request.n)))
            return Completion(
                id=answer_id,
                model=self.name,
                created=int(time.time()),
                prompt_tokens=sum(sample.prompt_tokens for record in records for sample in record.samples),
                choices=[_choice(record) for record in records],
            )

        return work()

    def ignored(self, request: ChatRequest) -> list[str]:
        """Return the fields of a request that have an effect on an agent, and none on the episode
        of the team.
        """
        fields = [name for name in OF_THE_RUN if getattr(request, name)]
        return [f"{field} of {self.name}" for field in (*fields, *request.sampling)]


def _choice(record: EpisodeRecord) -> Choice:
    """Return the answer of an episode, with the replies of its agents as its thinking. Raise
    Refusal if it failed.
    """
    if record.failure is not None:
        raise Refusal(f"the episode failed: {record.failure}", 503, "episode_failed")
    replies = [f"{sample.agent_id}: {sample.text}" for sample in record.committed]
    tokens = sum(sample.response_tokens for sample in record.samples)
    return Choice(record.answer, (), "\n\n".join(replies), "stop", tokens)
