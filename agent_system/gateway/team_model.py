"""A saved team as one model: a request plays an episode, whose answer is the reply."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from agent_system.gateway.errors import Refusal
from agent_system.gateway.reply import Choice, Completion
from agent_system.gateway.view import Viewer
from agent_system.gateway.wire import Ask
from agent_system.record import EpisodeRecord

# Fields of `Ask` that a team cannot fulfil, by their names in a request.
NOT_OF_A_TEAM = {
    "tools": "tools",
    "schema": "response_format",
    "forced": "tool_choice",
    "logprobs": "logprobs",
    "prompt": "prompt",
}
# Fields of `Ask` without effect on the episode of a team, besides those of sampling.
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

    def answer(self, ask: Ask, name: str) -> Awaitable[Completion]:
        """Return what plays the episodes of the user's last message and makes the answer with the id `name`.

        Raises Refusal for a request that a team cannot fulfil; the awaitable raises it for an episode that
        failed.
        """
        if unfit := [name for field, name in NOT_OF_A_TEAM.items() if getattr(ask, field)]:
            raise Refusal(
                f"{unfit[0]} is not supported by {self.name!r}, the whole team, which plays an episode as in "
                "validation; its agents support it",
                param=unfit[0],
            )
        views = Viewer(lambda text: text, False, False).views(ask.messages)
        question = next((str(view.message["content"]) for view in reversed(views) if view.role == "user"), "")
        if not question:
            raise Refusal(
                f"messages has no text of a user, which is the task of {self.name!r}", param="messages"
            )

        async def work() -> Completion:
            records = await asyncio.gather(*(self.ask(question) for _ in range(ask.n)))
            return Completion(
                id=name,
                model=self.name,
                created=int(time.time()),
                prompt_tokens=sum(sample.prompt_tokens for record in records for sample in record.samples),
                choices=[_choice(record) for record in records],
            )

        return work()

    def ignored(self, ask: Ask) -> list[str]:
        """Return the fields of a request that have an effect on an agent, and none on the episode of the
        team.
        """
        return [
            f"{field} of {self.name}"
            for field in (*(name for name in OF_THE_RUN if getattr(ask, name)), *ask.sampling)
        ]


def _choice(record: EpisodeRecord) -> Choice:
    """Return the answer of an episode, with the replies of its agents as its thinking. Raise Refusal if it
    failed.
    """
    if record.failure is not None:
        raise Refusal(f"the episode failed: {record.failure}", 503, "episode_failed")
    said: Sequence[str] = [f"{sample.agent_id}: {sample.text}" for sample in record.committed]
    return Choice(
        record.answer, (), "\n\n".join(said), "stop", sum(sample.response_tokens for sample in record.samples)
    )
