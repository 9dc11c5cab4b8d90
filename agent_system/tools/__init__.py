"""Tools that agents call: typed functions with validated arguments, run with limits, and `ToolAgent`, which
calls them.
"""

from agent_system.tools.agent import ToolAgent, ToolUse
from agent_system.tools.mcp import McpServer
from agent_system.tools.shipped import calculator, python, runs_programs, search_tool
from agent_system.tools.tool import Tool, make_tool

__all__ = [
    "McpServer",
    "Tool",
    "ToolAgent",
    "ToolUse",
    "calculator",
    "make_tool",
    "python",
    "runs_programs",
    "search_tool",
]
