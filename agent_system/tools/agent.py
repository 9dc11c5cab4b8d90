"""`ToolAgent`: an agent that calls tools between its generations until a reply contains no tool
call.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from agent_system.agent import BaseAgent, Message
from agent_system.errors import AgentSystemError
from agent_system.tool_use import ToolUse
from agent_system.tools.formats import ToolRequest, check_format
from agent_system.tools.tool import Tool, ToolError, ToolInputError, make_tool
from verl.utils.names import did_you_mean

if TYPE_CHECKING:
    from agent_system.tools.mcp import McpServer, McpTool

_DESCRIPTION = """\
You can call these tools:
{schemas}
Call one by <tool_call>{{"name": <name>, "arguments": <object>}}</tool_call>. Its result comes in the next message."""


class ToolAgent(BaseAgent):
    """An agent with tools. `turn.act` returns the projection of its last reply.

    Attributes:
        tools: plain or coroutine functions with typed arguments and a docstring with `Args:`; names
            of methods of the agent; `Tool`s, such as that of `delegate`; or `McpServer`, for the
            tools of a server.
        max_rounds: maximum number of generations per call of the agent; the last one is the reply,
            also if it calls tools.
        max_calls: maximum number of tool calls in one reply; further ones are malformed.
        tool_format: auto (the one that the chat template's own rendering shows) or a name of
            `agent_system.tools.formats.FORMATS`.
        tool_timeout_s: time limit of one tool call in seconds, including the wait for a free
            process of the sandbox.
        max_tool_chars: longest result of a tool in a prompt, in characters; the rest is cut off.
    """

    calls_tools = True
    tools: ClassVar[Sequence[Callable[..., Any] | str | Tool | McpServer]] = ()
    max_rounds: int = 4
    max_calls: int = 8
    tool_format: str = "auto"
    tool_timeout_s: float = 60.0
    max_tool_chars: int = 4000

    def __init__(self, agent_id: str, config: Any = None) -> None:
        super().__init__(agent_id, config)
        check_format(self.tool_format)
        if not self.tools:
            raise AgentSystemError(
                f"{type(self).__name__} has no tools; set `tools`, or derive from BaseAgent"
            )
        limits = {
            name: getattr(self, name)
            for name in ("max_rounds", "max_calls", "tool_timeout_s", "max_tool_chars")
        }
        if wrong := [name for name, value in limits.items() if value <= 0]:
            raise AgentSystemError(
                f"{type(self).__name__}.{wrong[0]} must be positive, found {limits[wrong[0]]!r}"
            )
        all_tools = [tool for entry in self.tools for tool in self._tools(entry)]
        self.by_name: dict[str, Tool | McpTool] = {tool.name: tool for tool in all_tools}
        if len(self.by_name) < len(all_tools):
            raise AgentSystemError(
                f"two tools of {type(self).__name__} have the same name: "
                f"{', '.join(t.name for t in all_tools)}"
            )

    def _tools(self, entry: Callable[..., Any] | str | Tool | McpServer) -> Sequence[Tool | McpTool]:
        if isinstance(entry, Tool):
            return [entry]
        if not isinstance(entry, str) and not callable(entry):
            # connections to MCP servers, which functions and methods do not need
            from agent_system.tools.mcp import McpServer

            if isinstance(entry, McpServer):
                return entry.tools()
        return [make_tool(getattr(self, entry) if isinstance(entry, str) else entry)]

    @property
    def schemas(self) -> list[Any]:
        """The tools' JSON schemas, as a chat template and an OpenAI server take them."""
        return [tool.schema for tool in self.by_name.values()]

    def describe_tools(self) -> str:
        """Return the text that is put before the system message when the chat template has no
        `tools`. Override to change the wording.
        """
        return _DESCRIPTION.format(schemas="\n".join(json.dumps(schema) for schema in self.schemas))

    async def answer(self, requests: Sequence[ToolRequest], number: int) -> tuple[list[Message], ToolUse]:
        """Run the tool calls of one reply in parallel and return a `tool` message for each, in
        their order.

        Args:
            requests: the calls.
            number: number of the round, from 0.
        """
        answers = await asyncio.gather(*(self._one(r) for r in requests[: self.max_calls]))
        extra = len(requests) - len(answers)
        if extra:
            answers.append(
                (
                    "malformed",
                    f"error: {extra} more tool calls were ignored; at most {self.max_calls} per reply",
                )
            )
        kinds = [kind for kind, _ in answers]
        malformed = kinds.count("malformed") + max(extra - 1, 0)
        use = ToolUse(number, len(requests), malformed, kinds.count("error"), kinds.count("timeout"))
        answered = requests[: len(answers)]
        return [_result(text, request) for (_, text), request in zip(answers, answered, strict=True)], use

    def named_calls(self, requests: Sequence[ToolRequest]) -> list[ToolRequest]:
        """Return the calls that get an answer, as a template can show them: a malformed one without
        arguments.
        """
        answered_requests = requests[: self.max_calls + 1]
        name = next(iter(self.by_name))
        return [
            r if r.is_readable and r.name else replace(r, name=r.name or name, arguments={})
            for r in answered_requests
        ]

    async def _one(self, request: ToolRequest) -> tuple[str, str]:
        tool = self.by_name.get(request.name)
        if request.error:
            return "malformed", f"error: {request.error[:200]}"
        if tool is None:
            name = request.name[:60]
            return (
                "malformed",
                f"error: no tool {name!r}{did_you_mean(name, self.by_name)}; tools: "
                f"{', '.join(self.by_name)}",
            )
        try:
            text = await tool.call(tool.validate(request.arguments), self.tool_timeout_s)
        except ToolInputError as error:
            return "malformed", f"error: {error}"
        except ToolError as error:
            return "error", f"error: {error}"
        except TimeoutError as error:
            return "timeout", f"error: {error}"
        rest = len(text) - self.max_tool_chars
        return "ok", text if rest <= 0 else f"{text[: self.max_tool_chars]} ... ({rest} more characters)"


def _result(text: str, request: ToolRequest) -> Message:
    """Return the message with the result of a call."""
    named = {"name": request.name} if request.name else {}
    return {"role": "tool", "content": text, **named, **({"tool_call_id": request.id} if request.id else {})}
