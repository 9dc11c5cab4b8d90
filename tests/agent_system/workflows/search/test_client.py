import asyncio
import socket
import time

import pytest

from agent_system.workflows.search.world.client import RetrievalClient
from agent_system.workflows.search.world.wire import Passage, RetrievalError, endpoint, read_answer


@pytest.fixture
def client(misbehaving):
    client = RetrievalClient(misbehaving.url, topk=2, timeout_s=0.5)
    yield client
    client.close()


async def test_our_server_is_asked(server):
    client = RetrievalClient(server.url, topk=1, timeout_s=20)
    found = await client.search("birthplace of Kilu")
    assert [(p.title, p.text) for p in found] == [("Kilu", "The birthplace of Kilu is Dena.")]
    assert found[0].score > 0
    assert client.search_now("zzz \x00 \ud800") == []
    client.close()
    with pytest.raises(RetrievalError, match="is closed"):
        client.search_now("zzz")


async def test_search_r1_is_asked_in_its_own_words(client, misbehaving):
    assert await client.search("Goethe") == [Passage("Tamo", "What Goethe brings.", 1.5)]
    assert misbehaving.asked == [{"queries": ["Goethe"], "topk": 2, "return_scores": True}]


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("rubbish", "found no JSON: b'<html>hello</html>'"),
        ("empty", "found no JSON"),
        ("deep", "does not answer as Search-R1's /retrieve does"),
        ("shape", "expected an object with a list 'result', found the fields hits"),
        ("number", "a finite score"),
        ("huge", "a finite score"),
        ("bare", "a text 'contents'"),
        ("nan", "a finite score"),
        ("broken", "HTTP status 500: b'Internal Server Error'"),
        ("moved", "HTTP status 302"),
        ("cut", "retrieve failed: "),
    ],
)
async def test_an_invalid_answer_is_an_error_that_names_the_server(client, misbehaving, query, words):
    with pytest.raises(RetrievalError) as error:
        await client.search(query)
    assert misbehaving.url in str(error.value)
    assert words in str(error.value)
    assert await client.search("and the next one") == [Passage("Tamo", "What and the next one brings.", 1.5)]


@pytest.mark.timing
async def test_a_slow_request_fails_after_the_time_limit_and_delays_no_other(client):
    began = time.monotonic()
    slow, fine = await asyncio.gather(
        client.search("slow one"), _timed(client, "fine"), return_exceptions=True
    )
    assert isinstance(slow, RetrievalError)
    assert "gave no answer within env.params.timeout_s=0.5 s" in str(slow)
    assert fine < 0.45
    assert time.monotonic() - began < 5


async def _timed(client: RetrievalClient, query: str) -> float:
    began = time.monotonic()
    await client.search(query)
    return time.monotonic() - began


async def test_an_unreachable_server_and_another_protocol_are_named():
    with socket.socket() as place:
        place.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{place.getsockname()[1]}"
        client = RetrievalClient(url, topk=1, timeout_s=5)
        with pytest.raises(
            RetrievalError, match=f"the request to {url}/retrieve failed: .*; is the retrieval server running"
        ):
            await client.search("x")
        client.close()

    async def mail(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 mail.example ESMTP ready\r\n")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(mail, "127.0.0.1", 0) as other:
        client = RetrievalClient(f"http://127.0.0.1:{other.sockets[0].getsockname()[1]}", topk=1, timeout_s=5)
        with pytest.raises(RetrievalError, match="retrieve failed: "):
            await client.search("x")
        client.close()


def test_one_client_serves_one_event_loop_after_the_other(server):
    client = RetrievalClient(server.url, topk=1, timeout_s=20)
    for _ in range(3):
        assert len(asyncio.run(client.search("Tamo author"))) == 1
    client.close()


def test_a_server_is_named_with_or_without_its_path():
    assert (
        endpoint("http://a:1")
        == endpoint("http://a:1/")
        == endpoint("http://a:1/retrieve/")
        == "http://a:1/retrieve"
    )


def test_documents_come_with_or_without_scores_and_in_several_forms():
    payload = {
        "result": [
            [{"id": "1", "contents": '"T"\nx'}, {"document": {"title": "U", "text": "y"}, "score": 2}],
            [],
        ]
    }
    assert read_answer(payload, 2) == [[Passage("T", "x"), Passage("U", "y", 2.0)], []]
    with pytest.raises(ValueError, match="for each of 3 queries"):
        read_answer(payload, 3)
