"""Where agents with tools can be."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from agent_system.agent import BaseAgent
from agent_system.errors import AgentSystemError
from agent_system.rollout.remote import RemoteBinding


def check_tool_agents(
    agents: Mapping[str, BaseAgent],
    bindings: Mapping[str, object],
    *,
    branches: bool,
    sequences: Collection[str] = (),
) -> None:
    """Raise AgentSystemError for a `ToolAgent` behind an API or with tree sampling (`branches`),
    and if `sequences` name none.
    """
    with_tools = [n for n, agent in agents.items() if agent.calls_tools]
    if sequences and not set(sequences) & set(with_tools):
        raise AgentSystemError(
            "actor_rollout_ref.rollout.tool_samples=sequence has no effect: none of "
            f"{', '.join(sequences)} is a ToolAgent; use generation"
        )
    if with_tools:
        from agent_system.tools.delegation import check_delegates  # of teams with tools

        check_delegates(agents)
    for name in with_tools:
        if branches:
            raise AgentSystemError(
                f"{name!r} is a ToolAgent, whose call has several generations; "
                "rollout.sampling=tree compares candidates of one generation: use "
                "rollout.sampling=parallel"
            )
        if isinstance(bindings[name], RemoteBinding):
            raise AgentSystemError(
                f"{name!r} is a ToolAgent, whose tool calls are read from the tokens of a local "
                "policy; an agent behind an API (agent.api) cannot have tools: use a policy of the "
                "run, or a BaseAgent"
            )
