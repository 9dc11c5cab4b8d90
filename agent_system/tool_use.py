"""Counts of the tool calls of a reply, which records have and `agent_system.tools` fills in."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ToolUse:
    """Tool calls of one reply.

    Attributes:
        round: number of the generation inside the agent's call, from 0.
        calls: tool calls of the reply, malformed ones included.
        malformed: calls that are no JSON, name no tool, have wrong arguments or exceed `max_calls`.
        errors: calls whose tool raised an exception.
        timeouts: calls that exceeded `tool_timeout_s`.
        restarted: the prompt was rendered anew instead of continuing the tokens of the last round.
        cut: the conversation ended with this reply although it calls tools, because of `max_rounds`
            or the longest prompt.
    """

    round: int = 0
    calls: int = 0
    malformed: int = 0
    errors: int = 0
    timeouts: int = 0
    restarted: bool = False
    cut: bool = False
