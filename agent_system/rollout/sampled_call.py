"""A call of an agent that gets one reply, with which the episode goes on: `rollout.sampling=parallel`, where a
task is played in several episodes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from agent_system.projection import Projection
from agent_system.rollout.call import Call, Reply
from agent_system.rollout.episode import Episode
from agent_system.rollout.prompt import Prompt
from agent_system.rollout.summary import is_due, summarize, summary_sample
from agent_system.turn import Turn


class SampledCalls:
    """The calls of an episode, each with one reply."""

    def __init__(self, episode: Episode) -> None:
        self._episode = episode

    async def end_turn(self) -> None:
        """Wait for nothing: calls that the team did not await may end in a later turn."""

    async def sample(self, turn: Turn, agent_id: str, variables: Mapping[str, Any]) -> Projection:
        """Call an agent and return the projection of its reply."""
        episode = self._episode
        call = await prompted_call(episode, turn, agent_id, variables)
        if call.runtime.agent.calls_tools:
            call, reply = await _play_rounds(episode, turn, call)
        else:
            reply, order = await _reply_to(episode, call)
            episode.keep(call, reply, order)
        if (summary := summary_sample(call, episode.reply_count - 1)) is not None:
            episode.keep_summary(call, summary)
        episode.finish_call(call, reply, turn)
        await episode.act(call, reply, turn)
        return reply.projection


async def prompted_call(episode: Episode, turn: Turn, agent_id: str, variables: Mapping[str, Any]) -> Call:
    """Number a call of an agent and build its prompt; if the agent's memory is due, it first writes a summary.

    Args:
        episode: the episode.
        turn: the turn in which the agent is called.
        agent_id: the agent.
        variables: variables of its prompt template, as of `Turn.act`.

    Raises as `Episode.admit`, `summarize` and `PromptBuilder.build` do.
    """
    runtime = episode.admit(agent_id)
    # the summary is generated before the reply, so it has the number before
    summary_number = turn.number(agent_id) if is_due(runtime.agent) else None
    call = episode.new_call(turn, agent_id, runtime)
    entries = turn.entries
    observation = await episode.observe(agent_id, turn)
    call = replace(call, seen=observation)
    filled = {**observation.info, "env_prompt": observation.text, "step": turn.step, **variables}
    if summary_number is not None:
        episode.waiting_for = f"the summary of {replace(call, number=summary_number).label}"
        call = await summarize(call, summary_number, filled, episode.clock)
    agent_memory = call.runtime.agent.memory
    # an agent without a memory of its own reads that of the team
    memory = turn.memory if agent_memory is None else agent_memory.at(observation.text)
    call = replace(call, prompt=call.runtime.prompts.build(filled, entries, memory))
    await asyncio.sleep(0)  # calls started together build their prompts before any of them gets a reply
    episode.waiting_for = f"the reply of {call.label}"
    return call


async def _reply_to(episode: Episode, call: Call) -> tuple[Reply, int]:
    """Sample one reply; return it with its place in the order of replies."""
    reply = await call.reply(episode.clock)
    episode.refuse_late(call)
    episode.reply_count += 1
    return reply, episode.reply_count - 1


async def _play_rounds(episode: Episode, turn: Turn, call: Call) -> tuple[Call, Reply]:
    """Play the rounds of a call of a `ToolAgent`, each a generation with a number of its own in the turn; return
    the last one.
    """
    # an agent without tools does not need it
    from agent_system.rollout.tool_loop import play_rounds

    numbers = [call.number]

    def next_round(last: Call, prompt: Prompt, seed: int) -> Call:
        numbers.append(turn.number(last.agent_id))
        following = replace(
            last, number=numbers[-1], prompt=prompt, prior_replies=episode.reply_count, seed=seed
        )
        episode.waiting_for = f"the reply of {following.label}"
        return following

    try:
        call, reply = await play_rounds(call, partial(_reply_to, episode), episode.keep, next_round)
    except BaseException:
        # the call has no result, so nobody hears of its rounds: they are neither rewarded nor trained
        episode.ledger.unheard.update((turn.step, number) for number in numbers)
        raise
    # rewards are given to the call, which has the number of its last round
    episode.ledger.rounds.update(((turn.step, number), call.number) for number in numbers[:-1])
    return call, reply
