import asyncio
import threading

import httpx
import pytest

from agent_system.workflows.search.world.corpus import Document
from agent_system.workflows.search.world.finder import Finder
from agent_system.workflows.search.world.server import RequestLimits, create_app
from tests.waiting import settle, until

DOCUMENTS = [Document(str(i), "", f"text {i}") for i in range(10)]


class Counting:
    """Finds document 1 for "1", and holds every search back until it is let go."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.go = threading.Event()

    def search(self, queries, topk):
        self.batches.append(list(queries))
        assert self.go.wait(60)
        if "bad" in queries:
            raise ValueError("no such word")
        return [[(int(query), 1.0)] * topk for query in queries]


@pytest.fixture
def index() -> Counting:
    return Counting()


async def test_what_is_asked_while_the_index_is_busy_is_searched_together(index):
    finder = Finder(DOCUMENTS, index, max_batch=3)
    first = asyncio.create_task(finder.find(["0"], 1))
    await until(lambda: index.batches)
    others = [asyncio.create_task(finder.find([str(i)], 1)) for i in range(1, 6)]
    await settle()
    index.go.set()
    found = await asyncio.gather(first, *others)
    assert [hits[0][0][0].id for hits in found] == list("012345")
    assert index.batches == [["0"], ["1", "2", "3"], ["4", "5"]]
    finder.close()


async def test_a_query_is_searched_once_for_all_who_ask_at_the_same_time_or_later(index):
    index.go.set()
    finder = Finder(DOCUMENTS, index)
    await asyncio.gather(*[finder.find(["1", "2"], 1) for _ in range(5)])
    await finder.find(["2", "1", "3"], 1)
    assert index.batches == [["1", "2"], ["3"]]
    assert finder.cached == 2
    await finder.find(["1"], 2)
    assert index.batches[-1] == ["1"], "another number of documents is another question"
    finder.close()


async def test_the_oldest_of_what_is_known_is_forgotten(index):
    index.go.set()
    finder = Finder(DOCUMENTS, index, cache_size=2)
    for query in ("1", "2", "1", "3", "1", "2"):
        await finder.find([query], 1)
    assert index.batches == [["1"], ["2"], ["3"], ["2"]]
    finder.close()


async def test_a_query_that_fails_costs_those_beside_it_nothing(index):
    finder = Finder(DOCUMENTS, index)
    first = asyncio.create_task(finder.find(["0"], 1))
    await until(lambda: index.batches)
    others = [asyncio.create_task(finder.find([query], 1)) for query in ("1", "bad", "2")]
    await settle()
    index.go.set()
    zero, one, bad, two = await asyncio.gather(first, *others, return_exceptions=True)
    assert [hits[0][0][0].id for hits in (zero, one, two)] == ["0", "1", "2"]
    assert isinstance(bad, ValueError)
    finder.close()


async def test_who_gives_up_does_not_end_the_search_for_the_others(index):
    finder = Finder(DOCUMENTS, index)
    impatient = asyncio.create_task(finder.find(["4"], 1))
    patient = asyncio.create_task(finder.find(["4"], 1))
    await settle()
    impatient.cancel()
    index.go.set()
    assert (await patient)[0][0][0].id == "4"
    assert index.batches == [["4"]]
    finder.close()


async def test_a_search_that_takes_too_long_is_given_up_and_the_next_one_is_served(index):
    app = create_app(Finder(DOCUMENTS, index), RequestLimits(timeout_s=0.1))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://server") as client:
        late = await client.post("/retrieve", json={"queries": ["1"]})
        assert late.status_code == 504
        assert late.json()["detail"] == "the search took longer than 0.1 s"
        index.go.set()
        async with asyncio.timeout(60):  # a busy machine may exceed the limit once more
            while (
                found := await client.post("/retrieve", json={"queries": ["1"], "topk": 1})
            ).status_code == 504:
                """Until the search that was given up has ended."""
    assert found.status_code == 200
    assert found.json()["result"][0][0]["id"] == "1"
