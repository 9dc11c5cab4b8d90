"""The agents of a team file that call tools."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

from agent_system.errors import AgentSystemError
from agent_system.tools import ToolAgent, calculator, delegate, python
from agent_system.workflows.graph.agents import GraphAgent
from agent_system.workflows.graph.schema import AgentSpec

SHIPPED: Mapping[str, Callable[..., Any]] = {"calculator": calculator, "python": python}


class GraphToolAgent(GraphAgent, ToolAgent):
    """An agent of a team file with tools; `make_tool_agent` makes a class with those of an agent."""


def make_tool_agent(agent_id: str, spec: AgentSpec, tools: Mapping[str, str]) -> GraphToolAgent:
    """Return an agent with the tools of its file. `tools` maps names to `module:function`.

    Raises AgentSystemError for a function that is not there, or that cannot be a tool.
    """
    names = [tool for tool in spec.tools if isinstance(tool, str)]
    own_tools = _load_tools({name: tools[name] for name in names if name in tools})
    functions = {**SHIPPED, **own_tools}
    all_tools = tuple(
        functions[tool] if isinstance(tool, str) else delegate(tool.delegate, most=tool.max, depth=tool.depth)
        for tool in spec.tools
    )
    attributes = {"tools": all_tools, "max_rounds": spec.max_rounds}
    try:
        agent = type("GraphToolAgent", (GraphToolAgent,), attributes)(agent_id, spec)
    except AgentSystemError as error:
        raise AgentSystemError(f"the tools of agent {agent_id!r}: {error}") from error
    return agent


def _load_tools(tools: Mapping[str, str]) -> dict[str, Callable[..., Any]]:
    """Return the functions of `name=module:function`. Raise AgentSystemError for one that is not
    there.
    """
    functions = {}
    for name, place in tools.items():
        module, colon, function = str(place).partition(":")
        where = f"agent.orchestra.graph.tools.{name}={place}"
        if not (colon and function.isidentifier()):
            raise AgentSystemError(f"{where}: expected module:function")
        try:
            functions[name] = getattr(importlib.import_module(module), function)
        except (ImportError, AttributeError, ValueError) as error:
            raise AgentSystemError(f"{where}: {error}") from error
    return functions
