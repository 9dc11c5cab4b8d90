"""An MCP server with a state: `python mcp_server.py`, or with a port over HTTP."""

import os
import sys
import time
from typing import Any

from mcp.server.mcpserver import MCPServer

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


if len(sys.argv) > 1:
    server.run("streamable-http", port=int(sys.argv[1]))
else:
    server.run()
