"""Tools of a user's MCP server: `tools = (McpServer(command=("python", "my_server.py")),)` in a
`ToolAgent`.

The server is a process that is started here and talks over its standard input and output, or one
that runs at a URL (streamable HTTP).
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agent_system.errors import AgentSystemError
from agent_system.resources import of_episode
from agent_system.tools.mcp_connection import (
    Connection,
    McpEndpoint,
    ServerError,
    on_loop,
    tools_of,
    valid_json,
)
from agent_system.tools.tool import ToolError, ToolInputError, cut
from verl.utils.names import did_you_mean

SCOPES = ("episode", "run")
MOST_TOOLS = 128
LONGEST_ARGUMENTS = 1 << 20  # characters of JSON


@dataclass(frozen=True)
class McpServer(McpEndpoint):
    """An MCP server, whose tools an agent gets.

    Attributes:
        only: names of the tools that the agent gets; empty for all.
        scope: `episode`: every episode that calls a tool has a connection of its own (a process of
            its own, for a command), so that what one episode changes no other sees; `run`: all
            episodes share one, for servers without state.
    """

    only: Sequence[str] = ()
    scope: str = "episode"

    def __post_init__(self) -> None:
        """Raise AgentSystemError for a server that is not described."""
        if bool(self.command) == bool(self.url) or isinstance(self.command, str):
            raise AgentSystemError(
                "McpServer needs a command, as a sequence of words, or a url; found "
                f"{self.command!r} and {self.url!r}"
            )
        if self.scope not in SCOPES:
            raise AgentSystemError(
                f"McpServer.scope must be one of {', '.join(SCOPES)}, found {self.scope!r}"
            )

    def tools(self) -> list[McpTool]:
        """Return its tools, with a connection for this purpose the first time.

        Raises AgentSystemError when it cannot be reached, has too many tools or two of one name, or
        lacks one of `only`.
        """
        all_tools = [McpTool(self, tool) for tool in tools_of(self)]
        names = [tool.name for tool in all_tools]
        if missing := [name for name in self.only if name not in names]:
            listing = ", ".join(names[:MOST_TOOLS]) or "none"
            raise AgentSystemError(
                f"the MCP server {self.name!r} has no tool "
                f"{missing[0]!r}{did_you_mean(missing[0], names)}; its tools: {listing}"
            )
        if twice := [name for name, count in Counter(names).items() if count > 1]:
            raise AgentSystemError(f"the MCP server {self.name!r} has two tools of the name {twice[0]!r}")
        offered_tools = [tool for tool in all_tools if not self.only or tool.name in self.only]
        if len(offered_tools) > MOST_TOOLS:
            raise AgentSystemError(
                f"the MCP server {self.name!r} has {len(offered_tools)} tools, more than "
                f"{MOST_TOOLS}; choose some with McpServer.only"
            )
        return offered_tools

    def connection(self) -> Connection:
        """Return the connection for the running task: that of its episode, or of the run."""
        resources = of_episode() if self.scope == "episode" else None
        if resources is None:
            return _shared.get(self)
        return resources.get(("mcp", self.key), lambda: Connection(self))


class _Shared:
    """Connections of the run. One whose server has ended is replaced by the next call."""

    def __init__(self) -> None:
        self._open: dict[str, Connection] = {}

    def get(self, server: McpServer) -> Connection:
        """Return the connection to a server."""
        connection = self._open.get(server.key)
        if connection is None or connection.ended:
            connection = self._open[server.key] = Connection(server)
        return connection


_shared = _Shared()


@dataclass(frozen=True)
class McpTool:
    """A tool of an MCP server, with the interface of `Tool`.

    Attributes:
        server: has it.
        schema: OpenAI-style JSON schema.
    """

    server: McpServer
    schema: Mapping[str, Any]

    @property
    def name(self) -> str:
        """Its name."""
        return str(self.schema["function"]["name"])

    def __deepcopy__(self, memo: dict[int, Any]) -> McpTool:
        """Return the tool itself, which has no state."""
        return self

    def validate(self, arguments: Any) -> dict[str, Any]:
        """Return the arguments, whose types the server checks. Raise ToolInputError for unknown,
        missing or too large ones.
        """
        parameters = self.schema["function"]["parameters"]
        properties = parameters.get("properties") or {}
        if not isinstance(arguments, dict):
            raise ToolInputError(
                f"the arguments of {self.name} must be a JSON object with "
                f"{', '.join(properties) or 'no keys'}"
            )
        arguments = valid_json(arguments)
        takes_more = parameters.get("additionalProperties") or parameters.get("properties") is None
        unknown = [key for key in arguments if key not in properties and not takes_more]
        missing = [key for key in parameters.get("required") or () if key not in arguments]
        for key in unknown[:1] or missing[:1]:
            problem = (
                f"{self.name} has no argument {key!r}"
                if unknown
                else f"{self.name} needs the argument {key!r}"
            )
            raise ToolInputError(cut(f"{problem}; its arguments: {', '.join(properties) or 'none'}"))
        if len(json.dumps(arguments)) > LONGEST_ARGUMENTS:
            raise ToolInputError(
                f"the arguments of {self.name} have more than {LONGEST_ARGUMENTS} characters"
            )
        return dict(arguments)

    async def call(self, arguments: Mapping[str, Any], limit_s: float) -> str:
        """Let the server run the tool and return the text of its result.

        Args:
            arguments: result of `validate`.
            limit_s: time limit in seconds, without that of connecting; a call that exceeds it is
                cancelled.

        Raises:
            TimeoutError: no result within the limit.
            ToolError: the tool, or the server, answered with an error.
            AgentSystemError: the server cannot be reached, or has ended; it costs the episode.
        """
        connection = self.server.connection()
        try:
            await on_loop(connection.ready())
            async with asyncio.timeout(limit_s):
                return await on_loop(connection.call(self.name, arguments))
        except TimeoutError as error:
            raise TimeoutError(f"{self.name} gave no result within {limit_s:g} s") from error
        except ServerError as error:
            raise AgentSystemError(f"the MCP server {self.server.name!r} {error}") from error
        except ToolError as error:
            raise ToolError(cut(f"{self.name} failed: {error}")) from error
