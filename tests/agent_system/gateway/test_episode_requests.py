"""Which call a request is: equal requests, retries, and the seeds that tell them apart."""

from __future__ import annotations

import asyncio
from itertools import product
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from agent_system import Task
from agent_system.gateway.chat_request import read_chat_request
from agent_system.gateway.session import Session
from tests.waiting import until

from .conftest import TASK, USER, posted, requests_of, say, send

BODY = {"model": "Writer", "messages": USER}
RETRY = {"x-stainless-retry-count": "1"}


async def test_a_reply_that_nobody_got_is_not_trained_and_a_marked_retry_gets_it(play: Any) -> None:
    release = asyncio.Event()
    fetch = [True]

    async def team(task: Task, session: Session) -> str:
        body = {"model": "Writer", "messages": USER, "n": 2}

        async def leaves() -> None:
            async with posted(session, body):
                """Never reached: the client leaves before the reply."""

        client = asyncio.create_task(leaves())
        await until(lambda: bool(requests_of(session)))
        client.cancel()
        await asyncio.wait([client])
        (request,) = requests_of(session)
        await until(lambda: not request.connected())
        release.set()
        await asyncio.wait([request.task])
        if fetch[0]:
            answer = await send(session, body, **{"x-stainless-retry-count": "1"})
            assert answer.text == "4"
        return "4"

    for fetched in (True, False):
        fetch[0] = fetched
        release.clear()
        episode, metrics, engine = await play(team, delay=lambda request: release.wait())
        assert episode.failure is None and len(engine.requests) == 1
        assert (len(episode.samples), len(episode.unheard)) == ((2, 0) if fetched else (0, 2))
        assert all(
            s.identity.trained == s.identity.committed == fetched
            for s in (*episode.samples, *episode.unheard)
        )
        assert (metrics["gateway/retried"], metrics["gateway/undelivered"]) == (
            float(fetched),
            2.0 * (not fetched),
        )


async def test_a_retry_gets_the_first_answer_that_was_lost_or_the_last_one_and_waits_for_it(
    make_team: Any,
) -> None:
    release, asked, answers = asyncio.Event(), list[Any](), list[Any]()

    async def delay(request: Any) -> None:
        asked.append(request)
        await release.wait()

    async def team(task: Task, session: Session) -> str:
        requests = collector.orchestra._server._open[session.api_key]
        clients = []
        for count in (1, 2, 3):
            clients.append(asyncio.create_task(send(session, BODY)))
            await until(lambda count=count: len(asked) == count)
        for client in clients[:2]:
            client.cancel()
        await until(
            lambda: (
                [r.connected() for same in requests._requests.values() for r in same] == [False, False, True]
            )
        )
        for count in (1, 2, 3):  # those that were lost, then the last one
            clients.append(asyncio.create_task(send(session, BODY, **RETRY)))
            await until(lambda count=count: requests.counts["gateway/retried"] + len(asked) == count + 3)
        release.set()
        answers.extend(await asyncio.gather(*clients[2:]))
        answers.append(await send(session, BODY, **RETRY))
        answers.append(await send(session, BODY))
        return "4"

    collector, _ = make_team(team, delay=delay)
    result = await collector.collect([TASK], 1, step=1)
    (episode,) = result.episodes
    assert episode.failure is None and [int(answer.body["id"].rpartition("-")[2]) for answer in answers] == [
        2,
        0,
        1,
        2,
        2,
        3,
    ]
    assert [(s.identity.trained, s.identity.prior_replies) for s in episode.samples] == [(True, 0)] * 3 + [
        (True, 3)
    ] and not episode.unheard
    counts = [result.metrics[f"gateway/{name}"] for name in ("retried", "repeated", "undelivered")]
    assert counts == [4, 3, 0] and len(asked) == 4


LOST = "x-lost"  # marks a request whose client leaves before the first byte of the answer


@pytest.fixture
def losing(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """The server breaks the connection of a request marked LOST when it begins to write the answer;
    one marked `later` waits for the event first.
    """
    write = web.StreamResponse.write
    later = asyncio.Event()

    async def lose(response: web.StreamResponse, data: bytes) -> None:
        http = response._req
        how = http.headers.get(LOST, "") if http is not None else ""
        if how == "later":
            await later.wait()
        if how and http is not None and http.transport is not None:
            http.transport.abort()
        await write(response, data)

    monkeypatch.setattr(web.StreamResponse, "write", lose)
    return later


async def attempt(session: Session, number: int, lost: str, n: int = 1) -> None:
    """Ask for a streamed answer for the `number`th time, from 0, and read it to its end."""
    headers = {"x-stainless-retry-count": str(number)} | ({LOST: lost} if lost else {})
    body = BODY | {"stream": True, "n": n}
    try:
        async with posted(session, body, **headers) as answer:
            text = await answer.text()
    except aiohttp.ClientError:
        text = ""
    assert ("[DONE]" in text) == (not lost)


@pytest.mark.parametrize("lost", list(product([False, True], repeat=3)))
@pytest.mark.parametrize("n", [1, 2])
async def test_a_reply_is_trained_if_any_of_the_requests_for_it_got_it(
    play: Any, losing: asyncio.Event, lost: tuple[bool, ...], n: int
) -> None:
    heard: list[bool] = []

    async def team(task: Task, session: Session) -> str:
        requests = session._episode._orchestra._server._open[session.api_key]
        for number, gone in enumerate(lost):
            await attempt(session, number, "now" if gone else "", n)
            heard.append(requests.delivered_any)
        return "4"

    episode, metrics, engine = await play(team)
    assert episode.failure is None and len(engine.requests) == 1
    reached = not all(lost)
    assert heard == [not all(lost[: number + 1]) for number in range(3)]
    assert [len(episode.samples), len(episode.unheard)] == ([n, 0] if reached else [0, n])
    # the place of the first delivery that was not undone
    first = lost.index(False) * n if reached else 0
    assert [s.identity.order for s in episode.samples] == [first + i for i in range(len(episode.samples))]
    assert (metrics["gateway/retried"], metrics["gateway/undelivered"]) == (2.0, 0.0 if reached else float(n))


@pytest.mark.parametrize("other", ["", "now"])
async def test_a_client_that_is_lost_takes_nothing_from_one_that_came_after_it(
    play: Any, losing: asyncio.Event, other: str
) -> None:
    """The first delivery ends after the second, whose client has got the reply or has not."""

    async def team(task: Task, session: Session) -> str:
        first = asyncio.create_task(attempt(session, 0, "later"))
        (call,) = await calls_of(session)
        await until(lambda: call in session._episode.ledger.delivered)
        await attempt(session, 1, other)
        losing.set()
        await first
        return "4"

    async def calls_of(session: Session) -> list[tuple[int, int]]:
        await until(lambda: bool(requests_of(session)) and requests_of(session)[0].task.done())
        return [(call.turn, call.number) for call, _ in requests_of(session)[0].replies]

    episode, metrics, _ = await play(team)
    assert episode.failure is None
    assert (len(episode.samples), len(episode.unheard)) == ((0, 1) if other else (1, 0))
    assert metrics["gateway/undelivered"] == float(bool(other))


async def test_equal_bodies_to_two_agents_are_two_requests(make_team: Any) -> None:
    async def team(task: Task, session: Session) -> str:
        requests = collector.orchestra._server._open[session.api_key]
        marked = {"Writer": False, "Editor": True}
        started = [
            requests.start(agent, read_chat_request(BODY), b"", retried, lambda: True)
            for agent, retried in marked.items()
        ]
        assert [(await pending.answer()).model for pending in started] == list(marked)
        return "4"

    collector, _ = make_team(team)
    (episode,) = (await collector.collect([TASK], 1, step=1)).episodes
    assert episode.failure is None, episode.failure


async def test_an_unmarked_repeat_is_a_new_call(play: Any) -> None:
    async def team(task: Task, session: Session) -> str:
        await say(session, "Writer")
        return (await say(session, "Writer")).text

    episode, metrics, engine = await play(team)
    first, second = engine.requests
    assert metrics["gateway/repeated"] == 1 and len(episode.samples) == 2 and first.seed != second.seed


async def test_seeds_follow_the_prompt_whatever_arrives_first_or_the_order(play: Any) -> None:
    def seeds(engine: Any) -> dict[tuple[int, ...], int]:
        return {request.prompt_ids: request.seed for request in engine.requests}

    found: dict[str, list[dict[tuple[int, ...], int]]] = {"prompt": [], "order": []}
    for way in found:
        for order in ((0, 1, 2), (2, 0, 1)):

            async def team(task: Task, session: Session, order: tuple[int, ...] = order) -> str:
                answers = [await say(session, "Writer", [{"role": "user", "content": str(i)}]) for i in order]
                return answers[0].text

            _, _, engine = await play(team, seed_by=way)
            found[way].append(seeds(engine))
    assert found["prompt"][0] == found["prompt"][1] and found["order"][0] != found["order"][1]
    assert list(found["order"][0].values()) == list(found["order"][1].values())


async def test_the_seed_of_a_client_is_mixed_into_that_of_the_run(play: Any) -> None:
    for way in ("prompt", "order"):
        found = []
        for seed in (None, 5, 5, 6):

            async def team(task: Task, session: Session, seed: int | None = seed) -> str:
                return [await say(session, "Writer", seed=seed) for _ in range(2)][1].text

            _, _, engine = await play(team, seed_by=way)
            found.append(tuple(request.seed for request in engine.requests))
        assert found[1] == found[2] and len({5, 6, *(seed for seeds in found for seed in seeds)}) == 8, way
