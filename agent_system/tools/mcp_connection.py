"""Connections to MCP servers, on an event loop of their own, so that they outlive the event loops
of episodes.
"""

from __future__ import annotations

import asyncio
import codecs
import json
import os
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from typing import Any, TypeVar

from agent_system.errors import AgentSystemError, masked, password
from agent_system.tools.tool import ToolError
from verl.utils.loop_thread import LoopThread

T = TypeVar("T")
MOST_LISTED = 10_000  # tools of a server
LONGEST_RESULT = 1 << 20  # characters; agents cut it further
# bytes that a server writes to its standard output as one message
LONGEST_LINE = 16 << 20
KEPT_ERRORS = 500  # characters of the end of a server's standard error


@dataclass(frozen=True)
class McpEndpoint:
    """How a server is reached.

    Attributes:
        command: starts it; it has PATH, HOME and the like in its environment, and `env`.
        url: address of one that runs, instead of `command`.
        env: environment variables of the command.
        start_timeout_s: limit of starting the server and connecting to it, in seconds.
    """

    command: Sequence[str] = ()
    url: str = ""
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    start_timeout_s: float = 30.0

    @property
    def name(self) -> str:
        """Its command or address, without a password."""
        return masked(self.url, password(self.url)) or " ".join(self.command)

    @property
    def key(self) -> str:
        """Equal for servers that are the same."""
        return json.dumps([list(self.command), self.url, dict(self.env)], sort_keys=True)


class ServerError(Exception):
    """A server cannot be reached or has ended; the message goes on after its name."""


@cache
def _loop() -> LoopThread:
    return LoopThread("mcp")


async def on_loop(work: Coroutine[Any, Any, T]) -> T:
    """Run `work` on the loop of the connections; a cancellation reaches it."""
    return await asyncio.wrap_future(_loop().submit(work))


class Connection:
    """A connection, which opens when it is first used. `ready` and `call` run on the loop of the
    connections.

    Attributes:
        ended: it can no longer be used.
    """

    def __init__(self, server: McpEndpoint) -> None:
        self.ended = False
        self._server = server
        self._task: asyncio.Task[None] | None = None
        self._errors = _Tail()
        self._cause = ""

    async def ready(self) -> Any:
        """Connect, unless that is done, and return the client of `mcp`. Raise ServerError if it is
        not possible.
        """
        if self._task is None:
            self._opened: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            self._closing = asyncio.Event()
            self._task = asyncio.create_task(self._hold())
        # Other calls may wait for the same connection.
        return await asyncio.shield(self._opened)

    async def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Return the text of a tool's result. Raise ToolError for an error that it reports,
        ServerError when the server has ended.
        """
        from mcp import MCPError
        from mcp.types import CONNECTION_CLOSED

        client = await self.ready()
        try:
            result = await client.call_tool(name, dict(arguments))
        except MCPError as error:
            if error.code == CONNECTION_CLOSED or error.message == "Session terminated":
                raise await self._end(error) from error
            data = getattr(error, "data", None)
            raise ToolError(str(error) if data is None else f"{error}: {_as_json(data)}") from error
        except ValueError as error:
            # a result that the protocol does not know
            raise ToolError(f"{type(error).__name__}: {error}") from error
        except Exception as error:  # of the transport
            raise await self._end(error) from error
        texts = [_block_text(block) for block in result.content]
        # A server may give a result in this form alone.
        if not any(texts) and result.structured_content is not None:
            texts = [_as_json(result.structured_content)]
        text = "\n".join(texts)[:LONGEST_RESULT].encode("utf-8", "replace").decode()
        if result.is_error:
            raise ToolError(text or f"{name} reported an error without a cause")
        return text

    async def close(self) -> None:
        """End the connection, and the server's process if it was started for it. May be called from
        any event loop.
        """
        self.ended = True
        if self._task is not None:
            await on_loop(self._close())

    async def _close(self) -> None:
        assert self._task is not None
        self._closing.set()
        if not self._opened.done():
            self._task.cancel()
        await asyncio.wait([self._task])

    async def _end(self, error: Exception) -> ServerError:
        self.ended = True
        self._closing.set()
        return ServerError(
            f"has ended: {await self._errors.last() or self._cause or error or type(error).__name__}"
        )

    async def _hold(self) -> None:
        """Keep the connection open: `mcp` wants to close it in the task that has opened it."""
        try:
            async with AsyncExitStack() as stack:
                async with asyncio.timeout(self._server.start_timeout_s):
                    client = await stack.enter_async_context(_client(self._server, self._errors))
                self._opened.set_result(client)
                await self._closing.wait()
        except Exception as error:  # of the transport, in groups
            self.ended = True
            self._cause = _innermost(error)
            if not self._opened.done():
                limit = (
                    f" within {self._server.start_timeout_s:g} s" if isinstance(error, TimeoutError) else ""
                )
                self._opened.set_exception(
                    ServerError(f"gave no connection{limit}: {await self._errors.last() or self._cause}")
                )
                self._opened.exception()  # the caller may have gone


@asynccontextmanager
async def _client(server: McpEndpoint, errors: _Tail) -> AsyncIterator[Any]:
    """Connect to a server."""
    try:
        from mcp import Client, StdioServerParameters
        from mcp.client.stdio import stdio_client
    except ImportError as error:
        raise AgentSystemError(
            f"McpServer needs the package mcp: pip install 'mcp>=2.3' ({error})"
        ) from error
    if server.url:
        async with Client(server.url) as client:
            yield client
        return
    first, *others = server.command
    parameters = StdioServerParameters(command=first, args=others, env=dict(server.env), encoding=_LINES)
    with errors.file() as file:
        async with Client(stdio_client(parameters, errlog=file)) as client:
            yield client


class _Lines(codecs.IncrementalDecoder):
    """UTF-8 without the rest of a line of more than `LONGEST_LINE` bytes, as an encoding: `mcp`
    keeps a line, however long, until its end.

    Such a line is no message, so its call gets no result; others go on.
    """

    def __init__(self, errors: str = "strict") -> None:
        super().__init__(errors)
        self._text = codecs.getincrementaldecoder("utf-8")("replace")
        self._length = 0

    def decode(self, data: Any, final: bool = False) -> str:
        """Return the next text."""
        line, end, rest = bytes(data).partition(b"\n")
        left_out = self._length > LONGEST_LINE
        self._length += len(line)
        if (excess := self._length - LONGEST_LINE) > 0:
            line = b"" if left_out else line[:-excess] + b"\n"
            kept_end = b""
        else:
            kept_end = end
        if end:
            self._length = len(rest) - 1 - rest.rfind(b"\n")
        return self._text.decode(line + kept_end + rest, final)


_LINES = "mcp_lines"


def _codec(name: str) -> codecs.CodecInfo | None:
    codec = codecs.CodecInfo(codecs.utf_8_encode, codecs.utf_8_decode, incrementaldecoder=_Lines, name=_LINES)
    return codec if name == _LINES else None


codecs.register(_codec)


class _Tail:
    """The end of what a process writes to its standard error."""

    def __init__(self) -> None:
        self._tail = b""

    async def last(self) -> str:
        """Return it, without white space around."""
        # the last words of a process may be on their way
        await asyncio.sleep(0.05)
        return self._tail.decode("utf-8", "replace").strip()[-KEPT_ERRORS:]

    def file(self) -> Any:
        """Return a file to write to, which the running event loop reads until all have closed it."""
        reader, writer = os.pipe()
        os.set_blocking(reader, False)
        loop = asyncio.get_running_loop()

        def read() -> None:
            chunk = b""
            with suppress(BlockingIOError):
                chunk = os.read(reader, 1 << 16)
                self._tail = (self._tail + chunk)[-4 * KEPT_ERRORS :]
                if not chunk:
                    loop.remove_reader(reader)
                    os.close(reader)

        loop.add_reader(reader, read)
        return os.fdopen(writer, "w")


_listed: dict[str, list[dict[str, Any]]] = {}


def tools_of(server: McpEndpoint) -> list[dict[str, Any]]:
    """Return the OpenAI-style schemas of a server's tools. Raise AgentSystemError when it cannot be
    reached or lists what is no tool.
    """
    if server.key not in _listed:
        try:
            _listed[server.key] = _loop().submit(_list(server)).result()
        except ServerError as error:
            raise AgentSystemError(f"the MCP server {server.name!r} {error}") from error
    return _listed[server.key]


async def _list(server: McpEndpoint) -> list[dict[str, Any]]:
    connection = Connection(server)
    limit = 3 * server.start_timeout_s
    tools: list[dict[str, Any]] = []
    try:
        async with asyncio.timeout(limit):
            client = await connection.ready()
            cursor = None
            while len(tools) <= MOST_LISTED:
                page = await client.list_tools(cursor=cursor)
                tools += [_schema(tool) for tool in page.tools]
                cursor = page.next_cursor
                if cursor is None:
                    return tools
    except ServerError:
        raise
    except TimeoutError as error:
        raise ServerError(f"did not list its tools within {limit:g} s") from error
    except Exception as error:  # of `mcp` and its transports
        raise ServerError(f"did not list its tools: {_innermost(error)}") from error
    finally:
        await connection.close()
    raise ServerError(f"has more than {MOST_LISTED} tools")


def _schema(tool: Any) -> dict[str, Any]:
    """Return the OpenAI-style schema of a tool."""
    function = {
        "name": tool.name,
        "description": tool.description or "",
        "parameters": dict(tool.input_schema),
    }
    return {"type": "function", "function": function}


def _block_text(block: Any) -> str:
    """Return the text of a block of a result, of a resource too; of others their kind, and their
    address if they have one.
    """
    for source in (block, getattr(block, "resource", None)):
        if isinstance(text := getattr(source, "text", None), str):
            return text
    uri = getattr(block, "uri", None) or getattr(getattr(block, "resource", None), "uri", None)
    return f"({block.type} {uri})" if uri else f"({block.type} that is not shown)"


def _as_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def valid_json(value: Any) -> Any:
    """Return JSON with its texts in valid Unicode. Raise RecursionError for one that is nested too
    deep.
    """
    return json.loads(json.dumps(value, ensure_ascii=False).encode("utf-8", "replace"))


def _innermost(error: BaseException) -> str:
    """Return the message of the first error in nested groups."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}"
