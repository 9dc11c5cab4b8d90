"""A real OpenAI-compatible server on the loopback, whose answers a test makes up."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


def completion(text: str | None, finish: str = "stop", **more: Any) -> dict[str, Any]:
    """A chat completion as servers write it."""
    usage = {"prompt_tokens": 11, "completion_tokens": 3}
    return {
        "choices": [{"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": finish}],
        "usage": usage,
        **more,
    }


class ChatServer:
    """`answer` makes an object for JSON, bytes as they are, or a number for that HTTP status; it may take its
    time.

    Attributes:
        bodies: of all requests so far.
        headers: theirs.
    """

    def __init__(self, answer: Callable[[dict[str, Any]], Any] | None = None) -> None:
        self.answer = answer or (lambda body: completion("fine"))
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                server.bodies.append(body)
                server.headers.append(dict(self.headers))
                found = server.answer(body) if self.path == "/v1/chat/completions" else 404
                said = f"no: {self.headers.get('Authorization')}".encode() if isinstance(found, int) else None
                data = said or (found if isinstance(found, bytes) else json.dumps(found).encode())
                try:
                    self.send_response(found if isinstance(found, int) else 200)
                    self.send_header("Content-Length", str(len(data)))
                    self.end_headers()
                    self.wfile.write(data)
                except (BrokenPipeError, ConnectionResetError):
                    """Nobody waits any more."""

            def log_message(self, *args: object) -> None:
                """Quiet."""

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.http.server_port}/v1"
        # `shutdown` waits until it looks again
        threading.Thread(target=self.http.serve_forever, args=(0.02,), daemon=True).start()

    def stop(self) -> None:
        """Go down; connections are refused from now on."""
        self.http.shutdown()
        self.http.server_close()
