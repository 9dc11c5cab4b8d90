"""`verl-mas watch`: a real server, a run that grows, other hosts and tokens."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.house.source import ROOT
from tests.report.reading import column, data_of, small_run
from tests.waiting import replace, settle, until
from verl.report import watch
from verl.report.folder import ReportError
from verl.report.live import LiveReport
from verl.report.watch import HEADERS, WatchServer

PARTS = ("trajectories/train_000003.jsonl", "credit/step_000003.json", "trajectories/val_000003.jsonl")


@asynccontextmanager
async def watched(folder: Path) -> AsyncIterator[tuple[str, aiohttp.ClientSession, LiveReport]]:
    """The address of a server of a run, a client and the report."""
    report = LiveReport(folder)
    server = WatchServer(report, poll_s=0.02)
    async with server.running(0) as address, aiohttp.ClientSession() as client:
        yield address, client, report


async def next_event(stream: aiohttp.ClientResponse) -> dict[str, Any]:
    async with asyncio.timeout(60):
        async for line in stream.content:
            if line.startswith(b"data: "):
                return json.loads(line[6:])
    raise AssertionError("the stream has ended")


def split_run(tmp_path: Path) -> tuple[Path, dict[str, bytes], list[str]]:
    """A run after two of its three steps; the files of the third one, and its lines of metrics.

    Who looks at the run while a test writes to it must see a file whole (`replace`), or one more piece of it
    (a single `write` that appends).
    """
    folder = small_run(tmp_path / "run", steps=3, val_every=1)
    later = {name: (folder / name).read_bytes() for name in PARTS}
    for name in PARTS:
        (folder / name).unlink()
    lines = (folder / "metrics.jsonl").read_text().splitlines(keepends=True)
    (folder / "metrics.jsonl").write_text("".join(lines[:3]))
    return folder, later, lines


async def test_the_page_is_that_of_the_report_and_asks_its_server_alone(tmp_path: Path) -> None:
    folder = small_run(tmp_path / "run")
    async with watched(folder) as (address, client, report):
        async with client.get(address) as response:
            page = await response.text()
            assert HEADERS.items() <= dict(response.headers).items() and response.status == 200
        assert "connect-src &#x27;self&#x27;" in page
        index = data_of(page)["index"]
        assert index["live"] and index["version"] == report.version
        async with client.get(f"{address}index") as response:
            assert (await response.json())["runs"] == index["runs"] == [json.loads(json.dumps(report.run))]
        episodes = index["runs"][0]["episodes"]
        for at, (chunk, row) in enumerate(zip(episodes["chunk"], episodes["row"], strict=True)):
            async with client.get(f"{address}chunk/{chunk}") as response:
                texts = await response.json()
            line = (
                (folder / index["runs"][0]["files"][column(episodes, "file")[at]])
                .read_text()
                .splitlines()[column(episodes, "line")[at] - 1]
            )
            reply = texts["strings"][texts["episodes"][row]["calls"][0]["reply"]]
            assert reply == json.loads(line)["calls"][0]["reply"]


async def test_a_run_that_grows_is_followed(tmp_path: Path) -> None:
    folder, later, lines = split_run(tmp_path)
    async with watched(folder) as (address, client, report):
        first = report.run
        rows, calls = first["episodes"]["length"], first["calls"]["length"]
        assert first["steps"] == [0, 1, 2]
        async with client.get(f"{address}events?since={report.version}") as stream:
            assert (
                stream.content_type == "text/event-stream" and HEADERS.items() <= dict(stream.headers).items()
            )
            replace(folder / PARTS[0], later[PARTS[0]], tmp_path)
            event = await next_event(stream)
            assert {"episodes", "calls", "files"} <= set(event["changed"]) and "metrics" not in event[
                "changed"
            ]
            assert event["episodes"] == [rows + 6]
            # half of a line, then the whole, then the same line with more metrics
            with (folder / "metrics.jsonl").open("a") as file:
                file.write(lines[3][:20])
            assert "damaged" in (await next_event(stream))["changed"]
            with (folder / "metrics.jsonl").open("a") as file:
                file.write("".join(lines[3:])[20:])
            event = await next_event(stream)
            assert {"metrics", "steps"} <= set(event["changed"])
            row = json.loads(lines[3]) | {"val-core/toy/acc/mean@1": 0.5}
            with (folder / "metrics.jsonl").open("r+") as file:
                file.seek(sum(map(len, lines[:3])))
                file.write(json.dumps(row) + "\n")
            event = await next_event(stream)
            assert "metrics" in event["changed"] and event["version"] == report.version
        async with client.get(f"{address}index?parts=metrics,steps,nothing") as response:
            (run,) = (await response.json())["runs"]
        assert set(run) == {"metrics", "steps"} and run["steps"] == [0, 1, 2, 3]
        assert run["metrics"]["val-core/toy/acc/mean@1"] == [None, None, None, 0.5]
        async with client.get(f"{address}index?parts=episodes,calls&after={rows},{calls}") as response:
            (run,) = (await response.json())["runs"]
        assert run["episodes"]["length"] == 6 and column(run["episodes"], "step") == [3] * 6
        assert run["calls"]["length"] == 12 and column(run["episodes"], "first_call")[0] == calls
        assert column(run["episodes"], "uid") == [
            json.loads(line)["uid"] for line in later[PARTS[0]].splitlines()
        ]


class Reader:
    """A browser that takes its time over each event: the run changes `most` times meanwhile."""

    def __init__(self, server: WatchServer, most: int) -> None:
        self.server, self.most, self.versions = server, most, list[int]()

    async def write(self, data: bytes) -> None:
        if not data.startswith(b"data: "):
            return
        self.versions.append(json.loads(data[6:])["version"])
        if len(self.versions) <= self.most:
            self.server.report.version += 1
            async with self.server._changed:
                self.server._changed.notify_all()
        else:
            self.server._closing = True


async def test_what_changes_while_an_event_is_written_is_told_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "_ALIVE_S", 600.0)
    server = WatchServer(LiveReport(small_run(tmp_path / "run")))
    reader: Any = Reader(server, most=2)
    async with asyncio.timeout(60):
        await server._send_events(reader, server.report.version - 1)
    assert reader.versions == [1, 2, 3]


async def test_an_event_waits_for_the_look_that_is_in_progress(tmp_path: Path) -> None:
    """Else it would tell of a version without what has changed in it, and no later one would."""
    folder, later, _ = split_run(tmp_path)
    report, inside, go_on = LiveReport(folder), threading.Event(), threading.Event()

    class History(list[set[str]]):
        def append(self, changed: set[str]) -> None:
            inside.set()
            assert go_on.wait(60)
            super().append(changed)

    report._history = History(report._history)
    version, server = report.version, WatchServer(report, poll_s=0.02)
    async with server.running(0) as address, aiohttp.ClientSession() as client:
        replace(folder / PARTS[1], later[PARTS[1]], tmp_path)
        await until(inside.is_set)
        async with client.get(f"{address}events?since={version}") as stream:
            event = asyncio.create_task(next_event(stream))
            await settle()
            assert not event.done()
            go_on.set()
            assert "credit" in (await event)["changed"]


async def test_what_changed_before_the_stream_was_opened_is_told(tmp_path: Path) -> None:
    folder, later, _ = split_run(tmp_path)
    async with watched(folder) as (address, client, report):
        version = report.version
        replace(folder / PARTS[1], later[PARTS[1]], tmp_path)
        await until(lambda: report.version != version)
        async with client.get(f"{address}events?since={version}") as stream:
            assert "credit" in (await next_event(stream))["changed"]


async def test_a_fresh_run_in_the_folder_replaces_the_report(tmp_path: Path) -> None:
    folder = small_run(tmp_path / "run")
    fresh = small_run(tmp_path / "fresh", steps=1)
    report = LiveReport(folder)
    (folder / "trajectories").rename(folder / "trajectories.1")
    (folder / "metrics.jsonl").rename(folder / "metrics.1.jsonl")
    assert report.refresh() and report.run["episodes"]["length"] == 0 and report.run["steps"] == []
    shutil.copytree(fresh / "trajectories", folder / "trajectories")
    shutil.copy(fresh / "metrics.jsonl", folder)
    assert report.refresh() and not report.refresh()
    assert report.run["steps"] == [0, 1] and sorted(set(column(report.run["episodes"], "step"))) == [0, 1]
    assert report.chunk(0) and report.chunk(10_000) is None


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("{token}/", 200),
        ("", 404),
        ("{token}", 404),
        ("{token}x/", 404),
        ("wrong/index", 404),
        ("/index", 404),
        ("%ff%ed%a0%80/index", 404),
        ("{token}/chunk/99999", 404),
        ("{token}/chunk/-1", 404),
        ("{token}/chunk/٣", 404),
        ("{token}/chunk/..%2f..%2frun.json", 404),
        ("{token}/../../../etc/passwd", 404),
        ("{token}/index?after=1", 400),
        ("{token}/index?parts=", 200),
        ("{token}/index?after=99999,99999", 200),
    ],
)
async def test_only_its_own_paths_are_served(tmp_path: Path, path: str, status: int) -> None:
    async with watched(small_run(tmp_path / "run")) as (address, client, _):
        origin, token = address.split("/")[2], address.split("/")[3]
        url = f"http://{origin}/{path.format(token=token)}"
        async with client.get(url) as response:
            assert response.status == status
            assert HEADERS.items() <= dict(response.headers).items()
            if status != 200:
                assert token not in await response.text()


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("localhost:9999", 200),
        ("127.0.0.1:1", 200),
        ("[::1]:80", 200),
        ("evil.example", 403),
        ("evil.example:80", 403),
        ("127.0.0.1.evil.example", 403),
        ("127.0.0.2", 403),
        ("localhost@evil.example", 403),
    ],
)
async def test_only_names_of_this_machine_are_answered(tmp_path: Path, host: str, status: int) -> None:
    async with (
        watched(small_run(tmp_path / "run")) as (address, client, _),
        client.get(address, headers={"Host": host}) as response,
    ):
        assert response.status == status


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
async def test_nothing_is_written(tmp_path: Path, method: str) -> None:
    folder = small_run(tmp_path / "run")
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    async with watched(folder) as (address, client, _):
        for path in ("", "index", "chunk/0", "events"):
            async with client.request(method, address + path, data=b"x") as response:
                assert response.status == 405
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before


async def test_it_listens_on_the_loopback_interface_alone(tmp_path: Path) -> None:
    async with watched(small_run(tmp_path / "run")) as (address, _, _):
        port = int(address.split("/")[2].rpartition(":")[2])
        others = {info[4][0] for info in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)}
        for other in others - {"127.0.0.1"}:
            with pytest.raises(OSError):
                socket.create_connection((other, port), timeout=2)
        with pytest.raises(OSError):
            socket.create_connection(("127.0.0.2", port), timeout=2)


async def test_a_folder_that_goes_away_does_not_end_the_server(tmp_path: Path) -> None:
    folder = small_run(tmp_path / "run")
    async with watched(folder) as (address, client, report):
        version = report.version
        folder.rename(tmp_path / "moved")
        await until(lambda: report.version != version)
        async with client.get(f"{address}chunk/0") as response:
            assert response.status == 404
        (tmp_path / "moved").rename(folder)
        await until(lambda: report.run["steps"] == [0, 1, 2])


async def test_an_error_of_one_look_does_not_end_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with watched(small_run(tmp_path / "run")) as (_, _, report):
        looks = []

        def refresh() -> bool:
            looks.append(1)
            raise ValueError("no number")

        monkeypatch.setattr(report, "refresh", refresh)
        await until(lambda: len(looks) >= 3)
    assert caplog.messages == ["the run cannot be read: ValueError: no number"]


async def test_a_request_without_a_path_is_refused(tmp_path: Path) -> None:
    async with watched(small_run(tmp_path / "run")) as (address, _, _):
        port = int(address.split("/")[2].rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"OPTIONS * HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert (await reader.readline()).split()[1] == b"404"
        writer.close()


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ReportError, match="has none of"):
        LiveReport(tmp_path)


@pytest.fixture
def command(tmp_path: Path) -> Callable[..., subprocess.Popen[str]]:
    def start(*arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "agent_system.launch.command", "watch", *arguments],
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            # a shell that starts the tests in the background has it ignored
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )

    return start


def test_the_command_prints_the_address_and_ends_by_ctrl_c(
    tmp_path: Path, command: Callable[..., subprocess.Popen[str]]
) -> None:
    small_run(tmp_path / "run")
    with command("run", "--port", "0") as process:
        assert process.stdout is not None
        address = process.stdout.readline()
        match = re.fullmatch(r"http://127\.0\.0\.1:(\d+)/[\w-]{32}/\n", address)
        assert match, address
        with command("run", "--port", match[1]) as second:
            _, err = second.communicate(timeout=60)
        assert second.returncode == 1
        assert (
            err.startswith(f"error: port {match[1]} of 127.0.0.1 cannot be used: ") and err.count("\n") == 1
        )
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "")
