"""Tools of a real MCP server: a process per episode or per run, and one behind HTTP."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from agent_system import AgentSystemError, BaseEnv, BaseOrchestra, Observation, Outcome, Task, Turn
from agent_system.rollout import AgentBinding, Collector, CollectorSettings, EnvFactory
from agent_system.testing import ScriptedEngine, make_tokenizer
from agent_system.tools import McpServer, ToolAgent, mcp_connection
from verl.protocol.generate import SamplingParams
from verl.single_controller.worker import find_free_port

pytest.importorskip("mcp")
SCRIPT = str(Path(__file__).with_name("mcp_server.py"))
COMMAND = (sys.executable, SCRIPT)
HOSTILE = str(Path(__file__).with_name("hostile_mcp_server.py"))


@pytest.fixture(scope="module", autouse=True)
def _servers_are_forked(mcp_python: str) -> Iterator[None]:
    """Most of a server's time is the import of the SDK."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(globals(), "COMMAND", (mcp_python, SCRIPT))
        yield


class World(BaseEnv):
    """One turn."""

    blocking = False

    def reset(self, task: Task) -> Observation:
        return Observation(task.prompt)

    def step(self, action: str) -> Outcome:
        return Outcome(1.0, done=True)


class Alone(BaseOrchestra):
    """One call."""

    agents = ("A",)

    async def run(self, turn: Turn) -> str:
        return (await turn.act("A")).action


def call(name: str, **arguments: Any) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def play(server: McpServer, first: Callable[[str], str], *prompts: str, timeout_s: float = 20.0) -> list[Any]:
    """Episodes of an agent whose first reply is made of the prompt; its second one is the last tool
    result.
    """

    class Agent(ToolAgent):
        tools = (server,)
        tool_timeout_s = timeout_s

    def reply(prompt: str, request: Any) -> str:
        asked = prompt.rpartition("user\n")[2].partition("<|im_end|>")[0]
        result = prompt.rpartition("<tool_response>\n")[2].partition("\n</tool_response>")[0]
        return result if "<tool_response>" in prompt else first(asked)

    tokenizer, sampling = make_tokenizer(), SamplingParams(2000)
    engine = ScriptedEngine(tokenizer, reply)
    binding = AgentBinding("A", "a", "a", engine, tokenizer, sampling, sampling, 12_000)
    collector = Collector(
        Alone(), {"A": Agent("A")}, EnvFactory(World), {"A": binding}, CollectorSettings(max_failure_rate=1.0)
    )
    return asyncio.run(collector.collect([Task(p, p) for p in prompts], 1, step=1)).episodes


def children() -> set[int]:
    found = set()
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if {SCRIPT, HOSTILE} & set(process.cmdline()):
                found.add(process.pid)
    return found


def test_every_episode_has_a_server_of_its_own_which_ends_with_it() -> None:
    before = children()
    episodes = play(McpServer(COMMAND), lambda asked: call("note", text=asked, times=2), "a", "c")
    assert [(e.failure, e.answer) for e in episodes] == [(None, "a a"), (None, "c c")]
    assert children() <= before


def test_all_episodes_of_a_run_may_share_a_server_in_which_one_that_died_is_replaced() -> None:
    server = McpServer(COMMAND, scope="run", only=["note", "die"])
    episodes = play(server, lambda asked: call("note", text=asked), "a", "b")
    assert {len(e.answer.split()) for e in episodes} == {1, 2}
    (episode,) = play(server, lambda asked: call("die"), "a")
    assert (
        "the MCP server" in episode.failure and "out of memory" in episode.failure.partition("has ended: ")[2]
    )
    (episode,) = play(server, lambda asked: call("note", text="new"), "a")
    assert (episode.failure, episode.answer) == (None, "new")


def test_errors_are_results_and_the_death_of_a_server_costs_its_episode() -> None:
    replies = {
        "unknown": (call("nothing"), "error: no tool 'nothing'"),
        "arguments": (
            call("note", txet="a"),
            "error: note has no argument 'txet'; its arguments: text, times",
        ),
        "missing": (call("note"), "error: note needs the argument 'text'"),
        "type": (call("note", text="a", times="often"), "error: note failed"),
        "fails": (call("fail"), "error: fail failed"),
        "long": (call("environment"), "more characters)"),
        "dies": (call("die"), ""),
    }
    before = children()
    episodes = play(McpServer(COMMAND), lambda asked: replies[asked][0], *replies)
    for episode, (name, (_, said)) in zip(episodes, replies.items(), strict=True):
        if name == "dies":
            assert "out of memory" in episode.failure.partition("has ended: ")[2]
        else:
            assert episode.failure is None and said in episode.samples[-1].request.prompt_text, (
                name,
                episode.failure,
                episode.answer,
            )
    (slow,) = play(McpServer(COMMAND), lambda asked: call("sleep"), "slow", timeout_s=1.0)
    assert (
        slow.failure is None
        and "error: sleep gave no result within 1 s" in slow.samples[-1].request.prompt_text
    )
    assert children() <= before


def test_every_block_of_a_result_is_shown() -> None:
    kinds = {
        "structured": '{"sum": 7}',
        "both": "seven",
        "resource": "a memo",
        "blob": "(resource memo://2)",
        "link": "(resource_link memo://3)",
        "image": "(image that is not shown)",
        "nothing": "",
        "error": 'error: result failed: {"cause": "no luck"}',
        "silent error": "error: result failed: result reported an error without a cause",
    }
    episodes = play(McpServer(COMMAND, scope="run"), lambda asked: call("result", kind=asked), *kinds)
    shown = dict(zip(kinds, (episode.answer for episode in episodes), strict=True))
    assert shown == kinds


def test_a_server_gets_no_environment_but_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "1")
    (episode,) = play(McpServer(COMMAND, env={"GIVEN": "1"}), lambda asked: call("environment"), "a")
    assert "GIVEN" in episode.answer and "SECRET_TOKEN" not in episode.answer


@pytest.mark.parametrize(
    ("server", "said"),
    [
        (
            lambda: McpServer(("no_such_program",)),
            "the MCP server 'no_such_program' gave no connection: .*no_such_program",
        ),
        (
            lambda: McpServer((sys.executable, "-c", "import sys; sys.exit('no module')")),
            "gave no connection: no module",
        ),
        (
            lambda: McpServer((sys.executable, "-c", "input(); input()"), start_timeout_s=0.5),
            r"gave no connection within 0\.5 s",
        ),
        (lambda: McpServer(url="http://127.0.0.1:9/mcp"), "gave no connection|did not list its tools"),
        (lambda: McpServer(COMMAND, only=["nota"]), "has no tool 'nota'; did you mean 'note'"),
        (lambda: McpServer(), "needs a command, as a sequence of words, or a url"),
        (lambda: McpServer(COMMAND, scope="step"), "must be one of episode, run, found 'step'"),
    ],
)
def test_a_server_that_cannot_be_used_is_an_error_before_a_model_loads(
    server: Callable[[], McpServer], said: str
) -> None:
    with pytest.raises(AgentSystemError, match=said):
        type("Agent", (ToolAgent,), {"tools": (server(),)})("A")


def hostile(way: str, **options: Any) -> McpServer:
    """A server that misbehaves in a way."""
    return McpServer((sys.executable, HOSTILE, way), **options)


def test_a_server_that_lists_what_no_agent_can_have_is_an_error() -> None:
    before = children()
    wrong = {
        "has 200 tools, more than 128; choose some with McpServer.only": hostile("many"),
        "has two tools of the name 't0'": hostile("twice"),
        "did not list its tools: ValidationError": hostile("schema"),
        "' did not list its tools within 3 s": hostile("pages", start_timeout_s=1.0),
        "did not list its tools within 3.3 s": hostile("silent", start_timeout_s=1.1),
        "'http://me:\\*\\*\\*@127.0.0.1:9/mcp'": McpServer(url="http://me:secret@127.0.0.1:9/mcp"),
    }
    with ThreadPoolExecutor() as pool:
        for said, listed in {said: pool.submit(server.tools) for said, server in wrong.items()}.items():
            with pytest.raises(AgentSystemError, match=said):
                listed.result()
    assert [tool.name for tool in hostile("many", only=["t7", "t199"]).tools()] == ["t7", "t199"]
    assert "secret" not in repr(McpServer(COMMAND, env={"TOKEN": "secret"}))
    assert children() <= before


def test_what_a_server_prints_and_describes_and_a_model_writes_harms_no_prompt() -> None:
    for way in ("garbage", "special", "open"):
        (episode,) = play(hostile(way), lambda asked: call("t0", text="a\ud800"), "a")
        first, second = episode.samples
        assert (episode.failure, json.loads(episode.answer)) == (None, {"text": "a?"}), way
        assert "Help." in first.request.prompt_text if way == "special" else True
        assert (
            first.request.prompt_text.count("<|im_end|>") == 2
            and second.request.prompt_text.count("<|im_end|>") == 4
        ), second.request.prompt_text


def test_a_message_that_is_too_long_is_a_call_without_a_result(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mcp_connection, "LONGEST_LINE", 2 << 20)
    calls = "".join(call("t0", mib=mib) for mib in (1, 8, 0))
    (episode,) = play(hostile("huge"), lambda asked: calls, "a", timeout_s=2.0)
    long, none, empty = episode.samples[-1].request.prompt_text.split("<tool_response>\n")[1:]
    assert (
        episode.failure is None
        and "more characters)" in long
        and "no result within 2 s" in none
        and empty.startswith("\n")
    )


@pytest.fixture
def url() -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """A server behind HTTP, and its process."""
    port = find_free_port("127.0.0.1")
    with subprocess.Popen([*COMMAND, str(port)], stderr=subprocess.DEVNULL) as process:
        while process.poll() is None:
            with suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                break
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port}/mcp", process
        process.kill()


def test_a_server_may_be_behind_http(url: tuple[str, subprocess.Popen[bytes]]) -> None:
    address, process = url
    server = McpServer(url=address)
    (episode,) = play(server, lambda asked: call("note", text="a"), "a")
    assert (episode.failure, episode.answer) == (None, "a")
    process.kill()
    process.wait(60)
    (episode,) = play(server, lambda asked: call("note", text="a"), "a")
    assert "the MCP server" in episode.failure and address in episode.failure
