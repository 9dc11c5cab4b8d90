"""The summary with which a call begins when the agent's `SummaryMemory` is due."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from agent_system.agent import BaseAgent
from agent_system.memory import SummaryMemory
from agent_system.record import Sample
from agent_system.rollout.call import Call
from agent_system.rollout.clock import EpisodeClock
from agent_system.rollout.seeds import stable_seed


class _Writer(BaseAgent):
    """An agent as the author of its summary: its name, and the prompt of its memory."""

    def __init__(self, agent_id: str, prompt: str) -> None:
        super().__init__(agent_id)
        self.prompt = prompt


async def summarize(call: Call, number: int, variables: Mapping[str, Any], clock: EpisodeClock) -> Call:
    """Return the call with the agent after it wrote a summary.

    Args:
        call: a call whose agent has a memory that is due.
        number: number of the summary in the turn.
        variables: variables of the templates.
        clock: time limits of the episode.

    Raises:
        RolloutError: as `Call.generate`.
        PromptTooLongError: the memory's template is too long without the memory.
    """
    agent = call.runtime.agent.fork()
    assert isinstance(agent.memory, SummaryMemory)
    memory = agent.memory.at(call.observation.text)
    runtime = call.runtime.of(_Writer(call.agent_id, agent.memory.prompt))
    prompt = runtime.prompts.build(variables, [], memory)
    seed = stable_seed(call.seed, "summary")
    summary_call = replace(
        call, runtime=runtime, number=number, prompt=prompt, seed=seed, so_far=(*call.so_far, "summary")
    )
    reply = await summary_call.reply(clock)
    agent.memory.rewrite(reply.projection.action)
    return replace(call, runtime=call.runtime.of(agent), summary=(summary_call, reply))


def summary_sample(call: Call, order: int) -> Sample:
    """Return the sample of the summary with which a call began, without rewards."""
    assert call.summary is not None, "it began with one"
    summary_call, reply = call.summary
    sample = summary_call.sample(reply, order)
    memory = call.before.memory
    assert isinstance(memory, SummaryMemory)
    return sample.with_identity(summary=True, trained=sample.identity.trained and memory.trained)
