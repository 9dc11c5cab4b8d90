"""Tools that agents call: typed functions with validated arguments, run with limits, and
`ToolAgent`, which calls them.

Names are imported on demand: most teams have no tools, and few tools are those of an MCP server,
run programs in the sandbox, search or call agents.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agent_system.tool_use import ToolUse
    from agent_system.tools.agent import ToolAgent
    from agent_system.tools.delegation import delegate
    from agent_system.tools.mcp import McpServer
    from agent_system.tools.shipped import calculator, python, runs_programs, search_tool
    from agent_system.tools.tool import Tool, make_tool

__all__ = [
    "McpServer",
    "Tool",
    "ToolAgent",
    "ToolUse",
    "calculator",
    "delegate",
    "make_tool",
    "python",
    "runs_programs",
    "search_tool",
]
_ON_DEMAND = {
    "McpServer": "agent_system.tools.mcp",
    "Tool": "agent_system.tools.tool",
    "ToolAgent": "agent_system.tools.agent",
    "ToolUse": "agent_system.tool_use",
    "calculator": "agent_system.tools.shipped",
    "delegate": "agent_system.tools.delegation",
    "make_tool": "agent_system.tools.tool",
    "python": "agent_system.tools.shipped",
    "runs_programs": "agent_system.tools.shipped",
    "search_tool": "agent_system.tools.shipped",
}


def __getattr__(name: str) -> Any:
    if name not in _ON_DEMAND:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_ON_DEMAND[name]), name)
