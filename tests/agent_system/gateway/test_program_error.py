"""`gateway.program_error`: an episode whose program raised because of a reply counts; other errors cost the
episode.
"""

from __future__ import annotations

import json
import signal
import sys
from types import SimpleNamespace
from typing import Any
from urllib.request import Request, urlopen

import pytest

from agent_system import AgentSystemError, Outcome, Task
from agent_system.gateway.program_error import CommandError, caused_by_a_reply
from agent_system.gateway.session import Session
from verl.protocol.generate import RolloutError
from verl.trainer.config import GatewayConfig
from verl.trainer.config.gateway import reward_of_error
from verl.trainer.config.spec import ConfigError, check_values

from .conftest import TASK, USER, Graded, say, send


async def read_json(task: Task, session: Session) -> Any:
    """The smallest program that raises for nearly every reply."""
    await say(session, "Writer")
    return json.loads((await say(session, "Editor")).text)["answer"]


def read_json_in_thread(task: Task, session: Session) -> Any:
    """The same as a plain function."""
    headers = {"Authorization": f"Bearer {session.api_key}"}
    for agent in ("Writer", "Editor"):
        body = json.dumps({"model": agent, "messages": USER}).encode()
        with urlopen(Request(f"{session.base_url}/chat/completions", body, headers)) as answer:
            text = json.load(answer)["choices"][0]["message"]["content"]
    return json.loads(text)["answer"]


class ReadsJson:
    """The same as an object."""

    async def __call__(self, task: Task, session: Session) -> Any:
        return await read_json(task, session)


PROGRAMS = [read_json, read_json_in_thread, ReadsJson()]


@pytest.mark.parametrize("program", PROGRAMS, ids=["coroutine", "function", "object"])
@pytest.mark.parametrize("reply", ["no JSON", "{}", "[1]", '{"answer": null}', '{"answer": ["4"]}'])
async def test_an_episode_whose_program_raised_because_of_a_reply_is_trained_with_its_reward(
    make_team: Any, program: Any, reply: str
) -> None:
    collector, _ = make_team(
        program, lambda prompt, request: reply, program_error="-0.5", max_failure_rate=0.0
    )
    result = await collector.collect([TASK], 2, step=1)
    for episode in result.episodes:
        assert (episode.failure, episode.team_reward, episode.answer) == (None, -0.5, "")
        assert [(s.agent_id, s.identity.trained, s.rewards.reward) for s in episode.samples] == [
            ("Writer", True, -0.5),
            ("Editor", True, -0.5),
        ]
        error = json.loads(json.dumps(episode.to_json()))["info"]["program_error"]
        assert error.startswith(("JSONDecodeError", "KeyError", "TypeError", "WrongResultError")), error
    assert len(result.batch) == 4 and result.metrics["gateway/program_errors"] == 1.0


async def test_the_default_leaves_the_episode_out_and_a_right_reply_is_scored(make_team: Any) -> None:
    for key, reply, failed, reward in (("fail", "x", 1, 0.0), ("0", '{"answer": "4"}', 0, 1.0)):
        collector, _ = make_team(
            read_json, lambda prompt, request, reply=reply: reply, program_error=key, max_failure_rate=1.0
        )
        result = await collector.collect([TASK], 1, step=1)
        (episode,) = result.episodes
        assert (episode.failed, episode.team_reward, "program_error" in episode.info) == (
            failed,
            reward,
            False,
        )


async def test_episodes_with_an_error_are_no_success(make_team: Any) -> None:
    replies = iter(['{"answer": "4"}'] * 2 + ["x"] * 2)
    collector, _ = make_team(
        read_json, lambda prompt, request: next(replies), program_error="0", max_concurrent_episodes=1
    )
    metrics = (await collector.collect([TASK], 2, step=1)).metrics
    assert (metrics["episode/success_rate"], metrics["gateway/program_errors"]) == (0.5, 0.5)


async def test_rewards_of_earlier_turns_stay(play: Any) -> None:
    async def team(task: Task, session: Session) -> None:
        await say(session, "Writer")
        await session.step("4")
        raise ValueError((await say(session, "Writer")).text)

    options = {"task": Task("a", "2+2?", "sums", "4", {"turns": 3}), "max_steps": 3, "program_error": "0.25"}
    episode, _, _ = await play(team, **options)
    assert (episode.failure, episode.turn_rewards) == (None, (1.0, 0.25))


class APIConnectionError(Exception):
    """As a client library has it."""


class Wrapped(Exception):
    """Of a framework."""


def raised(error: BaseException, cause: BaseException | None = None) -> BaseException:
    """An error with a cause."""
    error.__cause__ = cause
    return error


OTHERS = [
    ConnectionRefusedError("no"), TimeoutError(), ImportError("no module"), ModuleNotFoundError("x"),
    MemoryError(), NameError("x"),
    FileNotFoundError("x"), APIConnectionError("no"), AgentSystemError("ours"), ConfigError("ours"),
    RolloutError("ours"),
    raised(Wrapped("x"), APIConnectionError("no")), raised(Wrapped("x"), raised(Wrapped("y"), OSError())),
    ExceptionGroup("several", [ValueError("x"), ConnectionResetError()]),
    RuntimeError("APIConnectionError: Connection error.\nTraceback"),
]  # fmt: skip
OF_REPLIES = [
    ValueError("x"), KeyError("answer"), IndexError(), TypeError("x"), AttributeError("x"),
    UnboundLocalError("x"), AssertionError(),
    SyntaxError("x"), RecursionError(), Wrapped("no form"), raised(Wrapped("x"), ValueError("y")),
    SystemExit("no"),
    ExceptionGroup("several", [ValueError("x")]), RuntimeError("ValidationError: 1 error"),
    ValueError("the reply says ConnectionError: x"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("error", "counts"), [(e, False) for e in OTHERS] + [(e, True) for e in OF_REPLIES], ids=repr
)
async def test_what_may_come_from_a_reply_is_told_from_what_does_not(
    play: Any, error: BaseException, counts: bool
) -> None:
    async def team(task: Task, session: Session) -> str:
        await say(session, "Writer")
        raise error

    episode, _, _ = await play(team, program_error="0")
    assert (episode.failure is None) == counts, episode.failure


async def test_errors_of_requests_of_the_environment_and_before_a_reply_fail(play: Any) -> None:
    class Broken(Graded):
        def step(self, action: str) -> Outcome:
            raise ValueError("the environment's")

    async def refused(task: Task, session: Session) -> str:
        await say(session, "Writer")
        await send(session, {"model": "Writer", "messages": USER, "response_format": {"type": "json_object"}})
        raise ValueError("of the client")

    async def too_long(task: Task, session: Session) -> str:
        await say(session, "Writer")
        answer = await send(
            session, {"model": "Writer", "messages": [*USER, {"role": "user", "content": "x" * 5000}]}
        )
        raise APIConnectionError(answer.body["error"]["message"])

    async def too_long_at_once(task: Task, session: Session) -> str:
        await send(session, {"model": "Writer", "messages": [{"role": "user", "content": "x" * 5000}]})
        raise ValueError("of the task")

    async def at_once(task: Task, session: Session) -> str:
        raise ValueError("before a request")

    async def stepped(task: Task, session: Session) -> str:
        await session.step((await say(session, "Writer")).text)
        return "4"

    async def answers_again(task: Task, session: Session) -> str:
        await refused_only(session)
        return json.loads((await say(session, "Writer")).text)["answer"]

    async def refused_only(session: Session) -> None:
        await send(session, {"model": "Nobody", "messages": USER})

    failing = ((refused, Graded), (at_once, Graded), (stepped, Broken), (too_long_at_once, Graded))
    for team, env, failed in (
        *((*case, True) for case in failing),
        (answers_again, Graded, False),
        (too_long, Graded, False),
    ):
        episode, _, _ = await play(team, env=env, program_error="0")
        assert episode.failed == failed, (team.__name__, episode.failure)

    def broken(prompt: str, request: Any) -> str:
        raise RolloutError("out of memory")

    episode, _, _ = await play(read_json, broken, program_error="0")
    assert "RolloutError: out of memory" in str(episode.failure)


HEARD: Any = SimpleNamespace(
    unanswered=None, environment_error=None, delivered_any=True, failed=SimpleNamespace(done=lambda: False)
)
NODE = "AI_RetryError: Failed after 3 attempts.\n  [cause]: Error: connect ECONNREFUSED 127.0.0.1:1\n"
TRACEBACK = 'Traceback (most recent call last):\n  File "a.py", line 1, in <module>\n'


@pytest.mark.parametrize(
    ("errors", "killed", "counts"),
    [
        (f"{TRACEBACK}json.decoder.JSONDecodeError: Expecting value", False, True),
        ("AI_NoObjectGeneratedError: No object generated: could not parse the response.", False, True),
        ("", False, True),
        (f"{TRACEBACK}ModuleNotFoundError: No module named 'x'", False, False),
        (
            f"{TRACEBACK}httpx.ConnectError: refused\n\nThe above "
            f"exception\n\n{TRACEBACK}openai.APIConnectionError: x",
            False,
            False,
        ),
        (NODE, False, False),
        ("Error [ERR_MODULE_NOT_FOUND]: Cannot find package 'ai'", False, False),
        ("", True, False),
    ],
)
def test_what_a_command_prints_says_whether_a_reply_is_the_cause(
    errors: str, killed: bool, counts: bool
) -> None:
    assert caused_by_a_reply(CommandError("it ended", errors, killed), HEARD) == counts


ASKS = """
import json, os, sys
from urllib.request import Request, urlopen
task = json.load(sys.stdin)
body = json.dumps({"model": "Writer", "messages": [{"role": "user", "content": task["prompt"]}]}).encode()
key = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
with urlopen(Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body, key)) as answer:
    text = json.load(answer)["choices"][0]["message"]["content"]
"""


@pytest.mark.parametrize(
    ("end", "counts"),
    [
        ('print(json.dumps(json.loads(text)["answer"]))', True),
        ("print(text)", True),
        ("print(json.dumps(None))", True),
        ("import no_such_module", False),
        (f"import os; os.kill(os.getpid(), {int(signal.SIGKILL)})", False),
    ],
)
async def test_a_command_that_fails_after_a_reply(play: Any, end: str, counts: bool) -> None:
    replied = {"replies": lambda prompt, request: "no JSON"}
    episode, metrics, _ = await play(
        None, replied["replies"], team_command=(sys.executable, "-c", ASKS + end), program_error="0.5"
    )
    assert (episode.failed, episode.team_reward) == ((False, 0.5) if counts else (True, 0.0)), episode.failure
    if counts:
        assert metrics["gateway/program_errors"] == 1.0 and episode.samples[0].rewards.reward == 0.5
        assert (
            "the command" in episode.info["program_error"]
            or "the team returned" in episode.info["program_error"]
        )


@pytest.mark.parametrize(("value", "good"), [
    ("fail", True), ("0", True), ("-1.5", True), ("1e-3", True),
    ("nan", False), ("inf", False), ("1e99", False), ("True", False), ("often", False), ("", False),
])  # fmt: skip
def test_the_key_is_fail_or_a_finite_number(value: str, good: bool) -> None:
    keys = GatewayConfig(program_error=value)
    if good:
        check_values(keys, "gateway")
        assert reward_of_error(value) == (None if value == "fail" else float(value))
    else:
        with pytest.raises(
            ConfigError, match=r"^gateway\.program_error=.*: expected fail or a finite number"
        ):
            check_values(keys, "gateway")
