"""A call of an agent that gets one reply, with which the episode goes on:
`rollout.sampling=parallel`, which plays several episodes of a task.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

from agent_system.projection import Projection
from agent_system.rollout.call import Call
from agent_system.rollout.episode import Episode
from agent_system.turn import CallContext, Turn


async def sampled_call(episode: Episode, turn: Turn, agent_id: str, context: CallContext) -> Projection:
    """Call an agent: sample its reply, let the environment react to it, and return its projection.

    Args are those of `prompted_call`. Raises as it and `Call.generate` do, TurnOver for a reply
    that arrives after the end of the episode, and the errors of the environment.
    """
    # as they are now, for the children of the call as well
    if context.entries is None:
        context = replace(context, entries=tuple(turn.visible_entries(context.sees)))
    call = await prompted_call(episode, turn, agent_id, context)
    if call.runtime.agent.calls_tools:
        # rounds of tool calls, which an agent without tools does not have
        from agent_system.rollout.tool_loop import play_rounds

        call, reply = await play_rounds(episode, turn, call, context)
    else:
        reply, order = await episode.reply(call)
        episode.keep(call, reply, order)
    if call.summary is not None:
        from agent_system.rollout.summary import summary_sample  # of summaries alone

        episode.keep_summary(call, summary_sample(call, episode.reply_count - 1))
    episode.finish_call(call, reply, turn)
    await episode.act(call, reply, turn)
    return reply.projection


async def prompted_call(episode: Episode, turn: Turn, agent_id: str, context: CallContext) -> Call:
    """Number a call of an agent and build its prompt; an agent whose memory is due first writes a
    summary.

    Args:
        episode: the episode.
        turn: the turn in which the agent is called.
        agent_id: the agent.
        context: what its prompt shows.

    Raises as `Episode.admit`, `summarize` and `PromptBuilder.build` do.
    """
    runtime = episode.admit(agent_id)
    # the summary is generated before the reply, so it has the number before
    writes_summary = runtime.agent.memory is not None and runtime.agent.memory.due
    summary_number = turn.number(runtime.role, context.branch) if writes_summary else None
    call = episode.new_call(turn, agent_id, runtime, context.step, context.branch)
    entries = turn.visible_entries(context.sees) if context.entries is None else list(context.entries)
    observation = await episode.observe(runtime.role, turn)
    text = observation.text
    filled = {**observation.info, "task": text, "env_prompt": text, "step": turn.step, **context.variables}
    if context.branch is not None and context.branch.depth:
        call = replace(call, depth=context.branch.depth, so_far=(context.task,))
    if summary_number is not None:
        from agent_system.rollout.summary import summarize  # of summaries alone

        episode.waiting_for = f"the summary of {replace(call, number=summary_number).label}"
        call = await summarize(replace(call, observation=observation), summary_number, filled, episode.clock)
    # an agent without a memory of its own reads that of the team
    memory = turn.memory if (own_memory := call.runtime.agent.memory) is None else own_memory.at(text)
    # a copy costs as much as the whole prompt of a short text, so there is one for both
    call = replace(call, observation=observation, prompt=call.runtime.prompts.build(filled, entries, memory))
    # calls started together build their prompts before any of them gets a reply
    await asyncio.sleep(0)
    episode.waiting_for = f"the reply of {call.label}"
    return call
