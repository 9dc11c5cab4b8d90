"""The server as a process of its own, asked over HTTP."""

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from agent_system.workflows.search.world.local import SERVER, LocalServer
from agent_system.workflows.search.world.wire import RetrievalError
from tests.agent_system.workflows.search.conftest import wait_until
from tests.house.source import ROOT


def post(url: str, body: object) -> tuple[int, dict]:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=240) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def test_it_answers_as_search_r1_does_on_loopback_alone(server):
    assert server.url.startswith("http://127.0.0.1:")
    assert server.url.endswith("/retrieve")
    status, scored = post(
        server.url, {"queries": ["author of Tamo", "zzz"], "topk": 1, "return_scores": True}
    )
    (hit,), nothing = scored["result"]
    assert (status, nothing) == (200, [])
    assert hit["document"] == {"id": "0", "contents": '"Tamo"\nThe author of Tamo is Kilu.'}
    assert hit["score"] > 0
    _, plain = post(server.url, {"queries": ["author of Tamo, Kilu or Dena"]})
    assert all(set(document) == {"id", "contents"} for document in plain["result"][0])
    assert len(plain["result"][0]) == 3, "three documents by default"
    port = int(server.url.split(":")[2].split("/")[0])
    listening = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    assert {line[1] for line in listening if line[1].endswith(f":{port:04X}") and line[3] == "0A"} == {
        f"0100007F:{port:04X}"
    }


def test_the_same_query_again_is_remembered(server):
    def health() -> dict:
        with urllib.request.urlopen(server.url.replace("/retrieve", "/health"), timeout=240) as answer:
            return json.load(answer)

    post(server.url, {"queries": ["where is Dena"], "topk": 2})
    before = health()
    post(server.url, {"queries": ["where is Dena"] * 3, "topk": 2})
    after = health()
    assert (after["documents"], after["batches"], after["cached"] - before["cached"]) == (
        4,
        before["batches"],
        3,
    )


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({"queries": ["x" * 401]}, 413, "401 characters in one query; at most 400"),
        ({"queries": ["x"] * 513}, 413, "513 queries in one request; at most 512"),
        ({"queries": ["x"], "topk": 101}, 413, "101 documents per query"),
        ({"queries": ["x"], "topk": 0}, 422, "greater than or equal to 1"),
        ({"queries": []}, 422, "at least 1"),
        ({"queries": [3]}, 422, "valid string"),
        ({"query": "x"}, 422, "queries"),
        (b"{not json", 422, "JSON"),
    ],
)
def test_a_failed_request_gets_the_reason_and_the_server_continues(server, body, status, words):
    found, answer = post(server.url, body)
    assert (found, words in json.dumps(answer)) == (status, True)
    assert post(server.url, {"queries": ["Tamo"]})[0] == 200


def has_ended(pid: int) -> bool:
    try:
        return "Z" in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2][:3]
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_it_ends_when_its_standard_input_closes(corpus):
    parent = (
        "import os, sys; from agent_system.workflows.search.world.local import LocalServer; "
        f"print(LocalServer({str(corpus)!r}, start_timeout_s=100).pid, flush=True); os.kill(os.getpid(), 9)"
    )
    done = subprocess.run(
        [sys.executable, "-c", parent], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    pid = int(done.stdout)
    assert wait_until(lambda: has_ended(pid))


def test_close_leaves_no_process(corpus):
    server = LocalServer(str(corpus), start_timeout_s=100)
    assert server.alive
    server.close()
    assert not server.alive
    with pytest.raises(ProcessLookupError):
        os.kill(server.pid, 0)


def test_a_corpus_that_cannot_be_read_ends_the_start_with_its_line(tmp_path):
    (tmp_path / "corpus.jsonl").write_text('{"title": "no text"}\n')
    with pytest.raises(
        RetrievalError,
        match=r"ended with status 2; it wrote: error: .*corpus\.jsonl, line 1: found the fields title",
    ):
        LocalServer(str(tmp_path / "corpus.jsonl"), start_timeout_s=100)


def test_a_start_that_takes_too_long_is_ended(corpus):
    with pytest.raises(
        RetrievalError, match=r"was not ready within env.params.start_timeout_s=0\.01 s; it wrote: nothing"
    ):
        LocalServer(str(corpus), start_timeout_s=0.01)


def test_a_port_that_is_taken_is_named(corpus):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        command = [sys.executable, "-m", SERVER, "--corpus", str(corpus), "--port", str(port)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2
    assert f"cannot listen on 127.0.0.1:{port}" in done.stderr
    assert "Traceback" not in done.stderr
