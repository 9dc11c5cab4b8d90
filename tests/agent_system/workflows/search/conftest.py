"""A small corpus, a real server for it, and a real server that misbehaves on request."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from agent_system import Task
from agent_system.rollout import Collector
from agent_system.testing import make_tokenizer, scripted_team
from agent_system.workflows.search.world.local import LocalServer
from agent_system.workflows.search.world.shared import shared_retriever

LINES = [
    {"id": "0", "contents": '"Tamo"\nThe author of Tamo is Kilu.'},
    {"id": "1", "contents": '"Tamo"\nThe translator of Tamo is Pimo.'},
    {"title": "Kilu", "text": "The birthplace of Kilu is Dena."},
    {"id": "3", "text": "Dena is a town."},
]
TASK = Task("t", "What is the birthplace of the author of Tamo?", "demo", {"target": ["Dena", "Dena Town"]})
LATE_S = 20.0


@pytest.fixture(scope="session")
def corpus(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("corpus") / "corpus.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in LINES))
    return path


@pytest.fixture(scope="session")
def server(corpus) -> Iterator[LocalServer]:
    arguments = ("--timeout", "5", "--max-query-chars", "400")
    server = LocalServer(str(corpus), start_timeout_s=120, arguments=arguments)
    yield server
    server.close()


class Misbehaving(BaseHTTPRequestHandler):
    """Does what the first word of the query says, and answers properly to any other."""

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append(body)
        query = body["queries"][0]
        passage = {"document": {"id": "1", "contents": f'"Tamo"\nWhat {query} brings.'}, "score": 1.5}
        if query.startswith("slow"):
            self.server.released.wait(LATE_S)
        if query.startswith("cut"):
            self.send_response(200)
            self.send_header("Content-Length", "1000")
            self.end_headers()
            self.wfile.write(b'{"result"')
            self.close_connection = True
            return
        answers = {
            "rubbish": (200, "<html>hello</html>"),
            "shape": (200, json.dumps({"hits": [passage]})),
            "empty": (200, ""),
            "deep": (200, "[" * 200_000),
            "number": (200, json.dumps({"result": [[{"document": passage["document"], "score": "high"}]]})),
            "huge": (200, '{"result": [[{"document": {"contents": "x"}, "score": 1' + "0" * 400 + "}]]}"),
            "bare": (200, '{"result": [["only a text"]]}'),
            "nan": (200, '{"result": [[{"document": {"contents": "x"}, "score": NaN}]]}'),
            "broken": (500, "Internal Server Error"),
            "moved": (302, ""),
        }
        status, text = answers.get(query.split()[0], (200, json.dumps({"result": [[passage]]})))
        self.send_response(status)
        if status == 302:
            self.send_header("Location", "http://127.0.0.1:9/elsewhere")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        try:
            self.wfile.write(text.encode())
        except BrokenPipeError:
            self.close_connection = True

    def log_message(self, *_: Any) -> None:
        pass


class Threads(ThreadingHTTPServer):
    request_queue_size = 128  # of five, a sixth caller at the same time waits for a second


@pytest.fixture
def misbehaving() -> Iterator[Threads]:
    server = Threads(("127.0.0.1", 0), Misbehaving)
    server.daemon_threads = True
    server.asked, server.released = [], threading.Event()
    server.url = f"http://127.0.0.1:{server.server_address[1]}"
    # `shutdown` waits until it looks again
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    yield server
    server.released.set()
    server.shutdown()
    server.server_close()


@pytest.fixture(autouse=True)
def fresh_retrievers() -> Iterator[None]:
    """What one test has started is not what the next one asks."""
    yield
    shared_retriever.cache_clear()


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    return make_tokenizer()


Script = Callable[[str, Any], str]


@pytest.fixture
def make_collector(tokenizer) -> Callable[..., Collector]:
    """A team whose agents say what a script (prompt, request) -> reply has them say; `delay` is awaited
    before each reply.
    """

    def make(
        script: dict[str, Script], env: dict[str, Any], *, options=None, delay=None, **settings: Any
    ) -> Collector:
        given = {"max_steps": 4, "max_failure_rate": 1.0} | settings
        limits = {"tokenizer": tokenizer, "max_tokens": 400, "max_prompt_length": 4000}
        return scripted_team(
            "search", script, options=options, env_params=env, delay=delay, **limits, **given
        )

    return make


def wait_until(condition: Callable[[], bool], seconds: float = 120.0) -> bool:
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.02)
    return condition()
