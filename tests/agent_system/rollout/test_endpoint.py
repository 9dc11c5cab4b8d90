"""Agents behind an API, against real servers that are right, slow, gone or talk rubbish."""

from __future__ import annotations

import asyncio
import html
import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote, quote_plus

import pytest

from agent_system import AgentSystemError, Task
from agent_system.errors import masked
from agent_system.rollout import TooManyFailuresError
from agent_system.rollout.endpoint import MAX_SEARCHED_CHARS, Endpoint, EndpointError, Slots
from agent_system.rollout.prompt import Prompt
from agent_system.rollout.remote import RemoteBinding
from tests.chat_server import ChatServer, completion
from tests.cpu_time import cpu_seconds
from verl.protocol.generate import SamplingParams
from verl.trainer.config.api import ApiConfig

SAMPLING = SamplingParams(max_tokens=20, temperature=0.7, top_p=0.9)
TASK = Task("t", "2+2?", ground_truth="4")
MESSAGES = [{"role": "user", "content": "hello"}]


@pytest.fixture
def server() -> Iterator[ChatServer]:
    server = ChatServer()
    yield server
    server.stop()


def endpoint(url: str, api_key: str | None = None, **changes: Any) -> Endpoint:
    config = {"request_timeout_s": 5.0, "max_retries": 2, "retry_delay_s": 0.01} | changes
    return Endpoint("Judge", ApiConfig(url, "some-model", **config), api_key)


async def ask(server: Endpoint, **changes: Any) -> Any:
    try:
        return await server.ask(MESSAGES, SAMPLING, seed=2**40 + 7, **changes)
    finally:
        await server.close()


async def test_a_request_says_what_the_agent_samples_with_and_the_answer_is_read(server: ChatServer) -> None:
    server.answer = lambda body: completion("forty two", "length")
    answer = await ask(endpoint(server.url, api_key="sk-1", extra_body={"top_k": 5, "top_p": None}))
    assert (answer.text, answer.stop_reason, answer.prompt_tokens, answer.reply_tokens, answer.retries) == (
        "forty two",
        "length",
        11,
        3,
        0,
    )
    assert server.bodies == [
        {
            "model": "some-model",
            "messages": MESSAGES,
            "max_tokens": 20,
            "temperature": 0.7,
            "seed": 7,
            "top_k": 5,
        }
    ]
    assert server.headers[0]["Authorization"] == "Bearer sk-1"


async def test_a_text_that_ends_a_reply_stays_its_end_as_for_an_agent_with_tokens(server: ChatServer) -> None:
    server.answer = lambda body: completion("a </a> b\nc", "length")
    sampling = SamplingParams(20, stop=("\n", "</a>"))
    binding = RemoteBinding("Judge", "api", endpoint(server.url), sampling, sampling)
    (reply,) = await binding.replies(Prompt("", (), messages=tuple(MESSAGES)), sampling, 1, 7, "")
    assert (binding.text_of(reply), reply.stop_reason) == ("a </a>", "stop")
    assert "stop" not in server.bodies[0], "the server would leave the text out"
    await binding.endpoint.close()


async def test_an_address_may_end_in_the_path_and_without_a_key_none_is_sent(server: ChatServer) -> None:
    await ask(endpoint(f"{server.url}/chat/completions/".rstrip("/")))
    assert "Authorization" not in server.headers[0]


async def test_a_server_that_recovers_costs_retries_only(server: ChatServer) -> None:
    troubles = [503, b"<html>busy</html>", 429]
    server.answer = lambda body: troubles.pop() if troubles else completion("better")
    answer = await ask(endpoint(server.url, max_retries=3))
    assert (answer.text, answer.retries, len(server.bodies)) == ("better", 3, 4)


@pytest.mark.timing
async def test_a_slow_server_is_abandoned_after_its_time_limit_and_the_last_retry(server: ChatServer) -> None:
    server.answer = lambda body: time.sleep(3)
    before = time.monotonic()
    with pytest.raises(
        EndpointError,
        match=r"Judge, some-model at .*in 3 attempts, the last: no answer within request_timeout_s=0\.2 s",
    ):
        await ask(endpoint(server.url, request_timeout_s=0.2))
    assert time.monotonic() - before < 2.5 and len(server.bodies) == 3


async def test_a_server_that_is_down_is_named_with_the_cause(server: ChatServer) -> None:
    server.stop()
    with pytest.raises(EndpointError, match=r"gave no reply in 3 attempts, the last: ClientConnectorError"):
        await ask(endpoint(server.url))
    with pytest.raises(EndpointError, match=r"gave no reply in one attempt: ClientConnectorError"):
        await endpoint(server.url).check()


@pytest.mark.parametrize(
    "rubbish",
    [
        b"", b"{", b"[]", b"null", b"\xff\xfe", b"[" * 100_000, {"choices": []}, {"choices": [{}]},
        {"choices": "none"}, {"error": "x"},
        {"choices": [{"message": "text"}]}, {"choices": [{"message": {"content": {"a": 1}}}]},
        {"choices": [{"message": {"content": 7}}]},
    ],
)  # fmt: skip
async def test_rubbish_is_no_reply(server: ChatServer, rubbish: Any) -> None:
    server.answer = lambda body: rubbish
    with pytest.raises(EndpointError, match="in 2 attempts, the last: an answer"):
        await ask(endpoint(server.url, max_retries=1))


async def test_an_endless_answer_is_cut_off(server: ChatServer) -> None:
    server.answer = lambda body: b" " * (9 << 20)
    with pytest.raises(EndpointError, match="more than 8 MiB"):
        await ask(endpoint(server.url), retries=0)


async def test_what_the_server_refuses_for_good_is_not_tried_again_and_the_key_is_not_quoted(
    server: ChatServer,
) -> None:
    server.answer = lambda body: 401
    with pytest.raises(
        EndpointError, match=r"refuses the request with HTTP status 401: no: Bearer \*\*\*"
    ) as error:
        await ask(endpoint(server.url, api_key="sk-secret"))
    assert len(server.bodies) == 1 and "sk-secret" not in str(error.value)


KEY = 'sk-"a/b\\c+d e<\u00e9&\U0001f600'
SPELLINGS: dict[str, Callable[[str], str]] = {
    "plain": str,
    "json": json.dumps,
    "json_utf8": lambda key: json.dumps(key, ensure_ascii=False),
    "json_slashes": lambda key: json.dumps(key).replace("/", "\\/"),
    "json_twice": lambda key: json.dumps(json.dumps(key)),
    "url": quote,
    "url_whole": lambda key: quote(key, safe=""),
    "url_small": lambda key: re.sub("%..", lambda code: code[0].lower(), quote(key, safe="")),
    "url_form": quote_plus,
    "url_twice": lambda key: quote(quote(key, safe=""), safe=""),
    "json_in_url": lambda key: quote(json.dumps(key)),
    "html": html.escape,
    "html_numbers": lambda key: html.escape(key).encode("ascii", "xmlcharrefreplace").decode(),
    "json_in_html": lambda key: html.escape(json.dumps(key)),
}


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_a_key_is_masked_however_it_is_spelled(spelling: str) -> None:
    said = SPELLINGS[spelling](KEY)
    assert re.fullmatch(
        r"""no: \W*(%5c|%22|&quot;)*\*{3}\W*(%5c|%22|&quot;)*, sk-other""",
        masked(f"no: {said}, sk-other", KEY),
        re.I,
    )


@pytest.mark.parametrize(
    "text",
    ["\\" * 10**6, "%25" * 10**6, "s" * 10**6, "&amp;" * 10**6],
    ids=["backslash", "percent", "letter", "entity"],
)
def test_no_answer_makes_the_search_for_keys_slow(text: str) -> None:
    began = cpu_seconds()
    assert len(endpoint("http://host", api_key=KEY)._quoted(text)) == 200
    assert cpu_seconds() - began < 3


async def test_a_key_that_the_cut_divides_is_not_quoted(server: ChatServer) -> None:
    quoted = endpoint(server.url, api_key="sk-secret")._quoted
    for cut in range(1, 10):
        assert "sk" not in quoted("\\" * (MAX_SEARCHED_CHARS - cut) + "sk-secret")
    assert quoted(" " * MAX_SEARCHED_CHARS + "Bearer sk-secret") == "Bearer ***"


@pytest.mark.parametrize("character", "\n\r\t\0\x7f")
def test_a_control_character_in_a_key_is_named_without_the_key(character: str) -> None:
    with pytest.raises(
        AgentSystemError, match="Judge: character 4 of 10 of the key is a control character"
    ) as error:
        endpoint("http://host", api_key=f"sk-{character}secret")
    assert "secret" not in str(error.value)


async def test_a_password_in_the_address_is_in_no_message(server: ChatServer) -> None:
    address = server.url.replace("http://", "http://user:PASS@")
    server.answer = lambda body: 401
    with pytest.raises(EndpointError, match=r"at http://\*\*\*@127") as error:
        await ask(endpoint(address))
    assert "PASS" not in str(error.value) + repr(error.value.__cause__) + repr(endpoint(address).config)
    assert "PASS" not in endpoint(address)._quoted("InvalidURL: http://user:PASS@host")
    with pytest.raises(AgentSystemError, match="a key and a password in its base_url"):
        endpoint(address, api_key="sk-secret")


async def test_the_key_does_not_follow_a_redirect(server: ChatServer) -> None:
    server.answer = lambda body: 307
    with pytest.raises(EndpointError, match="HTTP status 307"):
        await ask(endpoint(server.url))


async def test_no_more_requests_at_a_time_than_allowed_and_those_of_a_validation_first(
    server: ChatServer,
) -> None:
    """Each request is answered when another one has come."""
    now, most, lock, pair = [0], [0], threading.Lock(), threading.Barrier(2, timeout=60)

    def answer(body: dict[str, Any]) -> Any:
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
        pair.wait()
        with lock:
            now[0] -= 1
        return completion("x")

    server.answer = answer
    one = endpoint(server.url, max_concurrent_requests=2)
    asked = [asyncio.create_task(one.ask(MESSAGES, SAMPLING, seed=i, priority=-(i > 5))) for i in range(10)]
    await asyncio.gather(*asked)
    await one.close()
    assert most[0] == 2 and [{body["seed"] for body in server.bodies[i : i + 2]} for i in (2, 4)] == [
        {6, 7},
        {8, 9},
    ]


async def test_a_request_that_is_cancelled_takes_no_slot_with_it() -> None:
    slots = Slots(1)

    async def use() -> None:
        async with slots.one(0):
            pass

    async with slots.one(0):
        waits, goes_on = (asyncio.create_task(use()) for _ in range(2))
        await asyncio.sleep(0)
        waits.cancel()
    goes_on.cancel()  # it has just got the slot
    await asyncio.gather(waits, goes_on, return_exceptions=True)
    assert waits.cancelled() and goes_on.cancelled()
    async with asyncio.timeout(5):
        await use()


def remote(server: ChatServer, **changes: Any) -> dict[str, RemoteBinding]:
    return {
        "Verifier": RemoteBinding(
            "Verifier", "api:some-model", endpoint(server.url, **changes), SAMPLING, SAMPLING
        )
    }


def test_an_agent_behind_an_api_speaks_and_only_the_others_are_in_the_batch(
    make_collector: Any, scripted: Any, server: ChatServer
) -> None:
    server.answer = lambda body: completion("<verify>approve</verify>")
    collector = make_collector(scripted(), remote=remote(server))
    result = asyncio.run(collector.collect([TASK], 2, step=1))
    assert list(result.batch.non_tensor_batch["agent_id"]) == ["Solver"] * 2
    record = result.episodes[0]
    calls = record.to_json()["calls"]
    assert [(c["agent_id"], c["policy_id"], c["trained"]) for c in calls] == [
        ("Solver", "solver", True), ("Verifier", "api:some-model", False),
    ]  # fmt: skip
    assert calls[1]["prompt"].startswith("user: Check: 2+2?\nSolver: ") and calls[1]["response_tokens"] == 3
    assert (result.metrics["agent/verifier/calls"], result.metrics["agent/verifier/prompt_length/mean"]) == (
        2.0,
        11.0,
    )
    assert (
        result.metrics["agent/verifier/endpoint_retries"] == 0.0
        and "agent/solver/endpoint_retries" not in result.metrics
    )
    assert record.reply_tokens == calls[0]["response_tokens"] > 3 and record.answer == "4"
    assert "Solver: so \\boxed{4}" in server.bodies[0]["messages"][0]["content"]
    assert server.bodies[0]["seed"] != server.bodies[1]["seed"]
    assert asyncio.run(collector.collect([TASK], 1, step=2)).batch is not None  # on another event loop


def test_a_server_that_is_down_fails_episodes_which_are_counted(
    make_collector: Any, scripted: Any, server: ChatServer
) -> None:
    def only_the_first(body: dict[str, Any]) -> Any:
        return completion("<verify>approve</verify>") if body["seed"] == server.bodies[0]["seed"] else 500

    server.answer = only_the_first
    tolerant = make_collector(scripted(), remote=remote(server), max_failure_rate=0.5)
    result = asyncio.run(tolerant.collect([TASK], 2, step=1))
    assert result.metrics["episode/failed"] == 1.0 and len(result.batch) == 1
    (failure,) = [e.failure for e in result.episodes if e.failure]
    assert (
        "EndpointError: the server of Judge, some-model at " in failure
        and "in 3 attempts, the last: HTTP status 500" in failure
    )
    strict = make_collector(scripted(), remote=remote(server), max_failure_rate=0.4)
    with pytest.raises(TooManyFailuresError, match="1 x EndpointError: the server of Judge"):
        asyncio.run(strict.collect([TASK], 2, step=1))


def test_the_time_limit_of_a_call_holds_whatever_the_retries(
    make_collector: Any, scripted: Any, server: ChatServer
) -> None:
    server.answer = lambda body: 503
    collector = make_collector(
        scripted(),
        remote=remote(server, max_retries=50, retry_delay_s=0.2),
        call_timeout_s=0.5,
        max_failure_rate=1.0,
    )
    (record,) = asyncio.run(collector.collect([TASK], 1, step=1)).episodes
    assert (
        "no reply for Verifier within rollout.call_timeout_s=0.5 s (policy api:some-model)" in record.failure
    )


async def test_candidates_of_a_tree_are_a_request_each_and_one_that_fails_is_left_out(
    server: ChatServer,
) -> None:
    binding, prompt = remote(server, max_retries=0)["Verifier"], Prompt("text", (), messages=tuple(MESSAGES))
    server.answer = lambda body: 500 if body["seed"] == 6 else completion(str(body["seed"]))
    found = await binding.replies(prompt, SAMPLING, 3, 5, "id")
    assert [(binding.text_of(r), r.stop_reason) for r in found] == [
        ("5", "stop"),
        ("", "abort"),
        ("7", "stop"),
    ]
    server.answer = lambda body: 500
    with pytest.raises(EndpointError):
        await binding.replies(prompt, SAMPLING, 3, 5, "id")
    await binding.endpoint.close()
