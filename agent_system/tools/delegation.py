"""The tool `delegate`: an agent with tools calls another agent of the team, whose reply is the
result.

    tools = (delegate("Finder", most=4, depth=2), calculator)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from agent_system.agent import BaseAgent
from agent_system.children import LONGEST_TASK, ToolCaller, check_limits
from agent_system.errors import AgentSystemError
from agent_system.tools.tool import Tool, ToolError, make_tool
from verl.utils.names import did_you_mean

# The call whose tools run.
calling: ContextVar[ToolCaller] = ContextVar("calling")


@dataclass(frozen=True)
class DelegateTool(Tool):
    """The tool that calls an agent.

    Attributes:
        agent_id: the agent.
        most: largest number of children of one call, in all of its rounds.
        depth: largest depth of the children: 1 if they may not delegate again.
    """

    agent_id: str = ""
    most: int = 4
    depth: int = 1

    def __reduce__(self) -> tuple[Callable[..., Tool], tuple[Any, ...]]:
        """Pickle what it is made of."""
        return _make, (self.agent_id, self.most, self.depth)

    def __deepcopy__(self, memo: dict[int, Any]) -> DelegateTool:
        """Return the tool itself, which has no state."""
        return self

    async def call(self, arguments: Mapping[str, Any], limit_s: float) -> str:
        """Call the agent and return its action. It has the time limits of a call and of the
        episode, and none of a tool.

        Raises:
            ToolError: the task is empty or too long, the call has too many children or is at the
                depth limit, or the reply could not be read.
            AgentSystemError: no call of an episode is running.
        """
        del limit_s
        caller = calling.get(None)
        if caller is None:
            raise AgentSystemError("delegate works in the calls of an episode alone")
        task = str(arguments["task"]).strip()
        limit = caller.limit(self.depth)
        self._check(task, caller, limit)
        try:
            reply = await caller.call(self.agent_id, task, limit)
        except TimeoutError as error:
            # one of the environment, not of the tool
            raise AgentSystemError(f"the call of {self.agent_id!r} by delegate: {error!r}") from error
        if not reply.valid:
            raise ToolError(f"{self.agent_id} gave no answer that could be read")
        return str(reply.action)

    def _check(self, task: str, caller: ToolCaller, limit: int) -> None:
        if not task:
            raise ToolError("the task is empty")
        if len(task) > LONGEST_TASK:
            raise ToolError(f"the task has {len(task):,} characters, more than {LONGEST_TASK:,}")
        if caller.depth > limit:
            raise ToolError(f"nothing can be delegated at depth {limit}, the limit; answer yourself")
        if caller.children >= self.most:
            raise ToolError(f"{self.most} tasks, the most, have been delegated; answer yourself")


def delegate(agent_id: str, *, most: int = 4, depth: int = 1) -> DelegateTool:
    """Return the tool `delegate(task)`, which calls an agent of the team.

    The agent's prompt has `{task}`, the task; outside of children it is the observation's text, so
    that an agent may delegate to itself. Its calls are children, as those of
    `agent_system.children.spawn`.

    Args:
        agent_id: the agent.
        most: largest number of children of one call, in all of its rounds.
        depth: largest depth of children, of a child not more than that of the tool, or spawn, that
            called it. The model hears of these limits when it exceeds them.

    Raises:
        AgentSystemError: a limit is out of range.
    """
    check_limits("delegate", most, depth)
    return _make(agent_id, most, depth)


def check_delegates(agents: Mapping[str, BaseAgent]) -> None:
    """Raise AgentSystemError for an agent that delegates to one that is not in the run.

    Args:
        agents: the agents of the run.
    """
    for name, agent in agents.items():
        for tool in getattr(agent, "by_name", {}).values():
            if isinstance(tool, DelegateTool) and tool.agent_id not in agents:
                raise AgentSystemError(
                    f"{name!r} delegates to {tool.agent_id!r}, which is no agent of this run"
                    f"{did_you_mean(tool.agent_id, agents)}; agents: {', '.join(agents)}"
                )


def _make(agent_id: str, most: int, depth: int) -> DelegateTool:
    def delegate(task: str) -> str:
        """Placeholder.

        Args:
            task: what to do, complete: nothing else of this conversation is shown.
        """
        # `DelegateTool.call` calls the agent
        raise NotImplementedError(task)

    delegate.__doc__ = (delegate.__doc__ or "").replace(
        "Placeholder", f"Give a part of the work to {agent_id}, and return the reply"
    )
    tool = make_tool(delegate)
    return DelegateTool(tool.name, tool.schema, tool.function, tool.arguments, agent_id, most, depth)
