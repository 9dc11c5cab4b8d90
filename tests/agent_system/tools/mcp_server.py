"""An MCP server with a state: `python mcp_server.py`, or with a port over HTTP."""

import os
import sys
import time
from typing import Any

from mcp.server.mcpserver import MCPServer
from mcp.types import (
    BlobResourceContents,
    CallToolResult,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
    TextResourceContents,
)

server, notes = MCPServer("notes"), list[str]()


@server.tool()
def note(text: str, times: int = 1) -> str:
    """Take a note and return all of them.

    Args:
        text: the note.
        times: how often.
    """
    notes.extend([text] * times)
    return " ".join(notes)


@server.tool()
def fail() -> str:
    """Fail."""
    raise ValueError("no luck")


@server.tool()
def sleep() -> str:
    """Give no result for a minute."""
    time.sleep(60)
    return ""


@server.tool()
def die() -> str:
    """End the server."""
    sys.stderr.write("out of memory\n")
    sys.stderr.flush()
    os._exit(3)


@server.tool()
def environment() -> dict[str, Any]:
    """Return names of environment variables, and the process."""
    return {"names": sorted(os.environ), "pid": os.getpid(), "long": "x" * 10_000}


def _result(**fields: Any) -> CallToolResult:
    return CallToolResult(**({"content": []} | fields))


RESULTS = {
    "structured": _result(structured_content={"sum": 7}),
    "both": _result(content=[TextContent(type="text", text="seven")], structured_content={"sum": 7}),
    "resource": _result(
        content=[
            EmbeddedResource(type="resource", resource=TextResourceContents(uri="memo://1", text="a memo"))
        ]
    ),
    "blob": _result(
        content=[
            EmbeddedResource(type="resource", resource=BlobResourceContents(uri="memo://2", blob="AAAA"))
        ]
    ),
    "link": _result(content=[ResourceLink(type="resource_link", name="memo", uri="memo://3")]),
    "image": _result(content=[ImageContent(type="image", data="AAAA", mime_type="image/png")]),
    "nothing": _result(),
    "error": _result(is_error=True, structured_content={"cause": "no luck"}),
    "silent error": _result(is_error=True),
}


@server.tool()
def result(kind: str) -> CallToolResult:
    """Return a result of a kind."""
    return RESULTS[kind]


if len(sys.argv) > 1:
    server.run("streamable-http", port=int(sys.argv[1]))
else:
    server.run()
