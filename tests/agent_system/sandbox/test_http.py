"""The backend for SandboxFusion, against servers that are right, slow, gone or talk rubbish."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from agent_system.sandbox import (
    FunctionCall,
    Sandbox,
    SandboxError,
    close_shared,
    configure,
    fusion,
    make_sandbox,
)
from verl.single_controller.worker import find_free_port
from verl.trainer.config.sandbox import SandboxConfig, SandboxLimitsConfig
from verl.trainer.config.spec import ConfigError

LIMITS = SandboxLimitsConfig(wall_s=2, output_kb=16)
# The program that tries a server out ends by itself, however busy the machine.
PATIENT = SandboxLimitsConfig(wall_s=20, output_kb=16)


def run_code(body: dict[str, Any]) -> dict[str, Any]:
    """What SandboxFusion does for Python: run the code, report on it."""
    try:
        done = subprocess.run(
            [sys.executable, "-S", "-c", body["code"]],
            input=body["stdin"],
            capture_output=True,
            text=True,
            timeout=body["run_timeout"],
        )
    except subprocess.TimeoutExpired:
        ran = {
            "status": "TimeLimitExceeded",
            "execution_time": body["run_timeout"],
            "return_code": None,
            "stdout": "",
            "stderr": "",
        }
        return {"status": "Failed", "message": "", "compile_result": None, "run_result": ran}
    ran = {
        "status": "Finished",
        "execution_time": 0.1,
        "return_code": done.returncode,
        "stdout": done.stdout,
        "stderr": done.stderr,
    }
    return {
        "status": "Success" if done.returncode == 0 else "Failed",
        "message": "",
        "compile_result": None,
        "run_result": ran,
        "files": {},
    }


class Server:
    """A real server whose answers are made by `answer`: an object for JSON, bytes as they are, a number for
    that HTTP status.
    """

    def __init__(self) -> None:
        self.answer: Callable[[dict[str, Any]], Any] = run_code
        self.bodies: list[dict[str, Any]] = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                server.bodies.append(body)
                found = server.answer(body) if self.path == "/run_code" else 404
                data = found if isinstance(found, bytes) else json.dumps(found).encode()
                self.send_response(found if isinstance(found, int) else 200)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *args: object) -> None:
                """Quiet."""

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}"
        # `shutdown` waits until it looks again
        threading.Thread(target=self.http.serve_forever, args=(0.02,), daemon=True).start()


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.http.shutdown()
    server.http.server_close()


@pytest.fixture(autouse=True)
def no_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    """The servers here answer at once, or never."""
    monkeypatch.setattr(fusion, "QUEUEING_S", 5.0)


def client(url: str) -> Sandbox:
    return make_sandbox(SandboxConfig(url=url, limits=LIMITS, workers=4))


@pytest.fixture
def sandbox(server: Server) -> Iterator[Sandbox]:
    sandbox = client(server.url + "/")
    yield sandbox
    sandbox.close()


async def test_runs_calls_and_compiling(sandbox: Sandbox, server: Server) -> None:
    results = await sandbox.run_tests("print(int(input()) + 1)", ["1", "x", "3"])
    assert [(r.stdout, r.reason.value) for r in results] == [("2\n", "ok"), ("", "error"), ("4\n", "ok")]
    body = server.bodies[0]
    assert (body["language"], body["run_timeout"], body["memory_limit_MB"], body["stdin"]) == (
        "python",
        2,
        512,
        "1",
    )
    program = (
        "print('noise', end='')\nclass S:\n    def f(self, x, *, y='\\n\"'):\n        return {x, 1}, y\n"
    )
    called, missing = await sandbox.run_tests(
        program, [FunctionCall("S.f", [1], {"y": "%s'\\"}), FunctionCall("g")]
    )
    assert (called.stdout, called.returned()) == ("noise", [[1], "%s'\\"])
    assert (missing.reason, missing.value) == ("error", None)
    assert (await sandbox.compile("def f(")).reason == "compile"
    assert (await sandbox.compile("1 / 0")).ok
    assert (await sandbox.compile("\ufeffx = 1")).ok
    assert sandbox.stats()["runs"] == 8


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("while True: pass", "timeout"),
        ("import os; os.kill(os.getpid(), 9)", "signal"),
        ("raise MemoryError", "memory"),
        ("x = (", "compile"),
        ("print('x' * 20000)", "output"),
        ("raise SystemExit(4)", "error"),
    ],
)
async def test_reasons(program: str, reason: str, sandbox: Sandbox) -> None:
    assert (await sandbox.run(program)).reason == reason


RUBBISH = {
    "status 500": 500,
    "status 404": 404,
    "no json": b"<html>busy</html>",
    "list": [1],
    "empty": {},
    "no result": {"status": "Success", "message": ""},
    "wrong types": {
        "status": "Success",
        "run_result": {"status": "Finished", "return_code": "0", "stdout": ""},
    },
    "number for text": {
        "status": "Success",
        "run_result": {"status": "Finished", "return_code": 0, "stdout": 1},
    },
    "other status": {"status": "Success", "run_result": {"status": "Done", "return_code": 0}},
    "sandbox error": {"status": "SandboxError", "message": "no free slot", "run_result": None},
    "nested": b"[" * 100_000,
    "endless": b'{"status": "' + b"x" * 3_000_000,
    "no bytes": b"",
}


@pytest.mark.parametrize("name", RUBBISH)
async def test_rubbish_is_a_counted_failure(name: str, sandbox: Sandbox, server: Server) -> None:
    server.answer = lambda body: RUBBISH[name]
    result = await sandbox.run("print(1)")
    assert (result.reason, result.ok, bool(result.message)) == ("sandbox", False, True)
    assert sandbox.stats()["runs/sandbox"] == 1 and len(server.bodies) == 2
    server.answer = run_code
    assert (await sandbox.run("print(1)")).stdout == "1\n"


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
async def test_an_answer_that_is_too_long_is_output_of_the_program(
    stream: str, sandbox: Sandbox, server: Server
) -> None:
    program = f"import sys\nsys.{stream}.write('\\0' * 6_000_000)"
    results = await sandbox.run_tests(program, [""]) + [await sandbox.run("print(1)")]
    assert [(r.reason.value, r.ok, r.message) for r in results] == [("output", False, ""), ("ok", True, "")]
    assert sandbox.stats()["runs/sandbox"] == 0


async def test_an_error_page_without_end_is_no_output_of_the_program() -> None:
    async def page(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 500 No\r\n\r\n" + b'{"stdout": "' + b"x" * 6_000_000)
        writer.close()

    async with await asyncio.start_server(page, "127.0.0.1") as server:
        broken = client(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        try:
            assert (await broken.run("print(1)")).reason == "sandbox"
        finally:
            broken.close()


async def test_a_server_that_is_down_is_a_counted_failure() -> None:
    port = find_free_port("127.0.0.1")
    sandbox = client(f"http://127.0.0.1:{port}")
    try:
        results = await sandbox.run_tests("print(1)", ["", ""])
        assert [r.reason.value for r in results] == ["sandbox", "sandbox"]
        assert str(port) in results[0].message
    finally:
        sandbox.close()


async def test_a_password_in_the_address_is_not_shown(caplog: pytest.LogCaptureFixture) -> None:
    address = f"127.0.0.1:{find_free_port('127.0.0.1')}"
    sandbox = client(f"http://user:PASS@{address}")
    try:
        result = await sandbox.run("print(1)")
        with pytest.raises(SandboxError) as error:
            sandbox.check()
        said = [result.message, sandbox.describe(), repr(sandbox.settings), str(error.value), caplog.text]
    finally:
        sandbox.close()
    assert [text for text in said if "PASS" in text] == [] and f"***@{address}" in result.message
    with pytest.raises(ConfigError, match=r"sandbox\.url='ftp://\*\*\*@host'"):
        make_sandbox(SandboxConfig(url="ftp://user:PASS@host"))


async def test_a_slow_answer_costs_its_own_run_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fusion, "QUEUEING_S", 0.5)

    def drip(listening: socket.socket) -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            threading.Thread(target=feed, args=(connection,), daemon=True).start()

    def feed(connection: socket.socket) -> None:
        try:
            while True:
                connection.sendall(b"H")
                time.sleep(0.05)
        except OSError:
            return

    limits = SandboxLimitsConfig(wall_s=0.1)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=drip, args=(listening,), daemon=True).start()
        sandbox = client(f"http://127.0.0.1:{listening.getsockname()[1]}")
        began = time.monotonic()
        try:
            result = await sandbox.run("print(1)", limits=limits)
            assert result.reason == "sandbox"
            assert time.monotonic() - began < 60, "the answer never ends"
        finally:
            sandbox.close()


@pytest.mark.timing
async def test_a_slow_server_delays_no_other_run(sandbox: Sandbox, server: Server) -> None:
    server.answer = lambda body: (
        time.sleep(1.5) or run_code(body) if "slow" in body["code"] else run_code(body)
    )
    slow = asyncio.create_task(sandbox.run("print('slow')"))
    began = time.monotonic()
    assert (await sandbox.run("print(1)")).ok
    assert time.monotonic() - began < 1.4
    slow.cancel()


def test_a_server_that_cannot_run_programs_is_found_at_the_start(server: Server) -> None:
    server.answer = lambda body: {"status": "SandboxError", "message": "no free slot"}
    with pytest.raises(SandboxError, match="no free slot"):
        configure(SandboxConfig(url=server.url, limits=PATIENT))
    server.answer = run_code
    try:
        assert "SandboxFusion at" in configure(SandboxConfig(url=server.url, limits=PATIENT)).describe()
    finally:
        close_shared()
