"""Episodes do not wait for each other: agents of different episodes speak at the same time, and a bad server
costs its own episodes.
"""

import asyncio
import time
from dataclasses import replace
from pathlib import Path

import pytest

from agent_system.rollout import TooManyFailuresError
from agent_system.workflows.search import ANSWER, SEARCH, VERIFIER, SearchEnv, SearchEnvOptions
from agent_system.workflows.search.world.shared import Retriever
from agent_system.workflows.search.world.wire import RetrievalError
from tests.agent_system.workflows.search.conftest import LATE_S, TASK, wait_until

LIMIT_S = 3.0


def tasks(*names: str):
    return [replace(TASK, task_id=name, prompt=f"Ask {name}?") for name in names]


def asked_for(prompt: str) -> str:
    return prompt.split("# Question\nAsk ")[1].split("?")[0]


def once(prompt: str, request) -> str:
    """Searches for what the question names, once, and answers."""
    del request
    if "You are the Search" in prompt:
        return f"<search>{asked_for(prompt)}</search>"
    if "You are the Answer" in prompt:
        return "<answer>Dena</answer>"
    return f"<verify>{'yes' if 'Step 1' in prompt else 'no'}</verify>"


TEAM = {name: once for name in (VERIFIER, SEARCH, ANSWER)}


@pytest.mark.timing
@pytest.mark.parametrize(
    ("bad", "cause"),
    [
        ("slow", "gave no answer within env.params.timeout_s=3 s"),
        ("rubbish", "found no JSON"),
        ("broken", "HTTP status 500"),
        ("cut", "retrieve failed: "),
    ],
)
async def test_a_bad_search_fails_its_own_episode_after_the_time_limit_and_no_other(
    make_collector, misbehaving, bad, cause
):
    finished: dict[str, float] = {}

    async def note(request) -> None:
        finished[request.request_id] = time.monotonic()

    collector = await asyncio.to_thread(
        make_collector, TEAM, {"url": misbehaving.url, "timeout_s": LIMIT_S}, delay=note
    )
    began = time.monotonic()
    result = await collector.collect(tasks("one", bad, "two", "three"), 2, step=0)
    took = time.monotonic() - began
    failed = {e.task_id for e in result.episodes if e.failed}
    assert failed == {bad}
    assert all(
        "RetrievalError" in e.failure and cause in e.failure and misbehaving.url in e.failure
        for e in result.episodes
        if e.failed
    )
    assert all(e.team_reward == 1 for e in result.episodes if not e.failed)
    assert set(result.batch.non_tensor_batch["task_id"]) == {"one", "two", "three"}
    assert took < LATE_S / 2
    if bad == "slow":
        assert took >= LIMIT_S
        assert max(finished.values()) - began < LIMIT_S, "the others had ended long before"


async def test_a_server_that_is_down_stops_the_run_with_the_cause(make_collector, misbehaving):
    collector = await asyncio.to_thread(
        make_collector, TEAM, {"url": misbehaving.url, "timeout_s": LIMIT_S}, max_failure_rate=0.1
    )
    misbehaving.shutdown()
    misbehaving.server_close()
    with pytest.raises(TooManyFailuresError, match="is the retrieval server running"):
        await collector.collect(tasks("one", "two"), 2, step=0)


async def test_agents_that_do_not_depend_on_each_other_speak_at_the_same_time(make_collector, misbehaving):
    """One episode answers at once, the other searches first: neither gets its reply before both are asked."""
    barrier = asyncio.Barrier(2)
    met: list[str] = []

    def verifier(prompt: str, request) -> str:
        del request
        return f"<verify>{'yes' if asked_for(prompt) == 'known' or 'Step 1' in prompt else 'no'}</verify>"

    collector = await asyncio.to_thread(make_collector, TEAM | {VERIFIER: verifier}, {"url": misbehaving.url})
    for name in (SEARCH, ANSWER):
        collector.runtimes[name].binding.client._delay = _meeting(name, barrier, met)
    result = await collector.collect(tasks("known", "new"), 1, step=0)
    assert set(met) == {SEARCH, ANSWER}
    assert not any(e.failed for e in result.episodes)


def _meeting(name: str, barrier: asyncio.Barrier, met: list[str]):
    async def meet(request) -> None:
        del request
        if name not in met:
            met.append(name)
            await asyncio.wait_for(barrier.wait(), 60)

    return meet


async def test_a_server_of_our_own_that_dies_is_started_again(corpus):
    retriever = Retriever(corpus=str(corpus), topk=1, timeout_s=20, start_timeout_s=100)
    assert len(await retriever.search("author Tamo")) == 1
    first = retriever.server
    first._child.kill()
    assert await asyncio.to_thread(wait_until, lambda: not first.alive)
    assert len(await retriever.search("author Tamo")) == 1
    assert retriever.server.pid != first.pid
    retriever.close()
    assert retriever.server is None


async def test_a_server_of_our_own_takes_what_the_environment_sends(corpus):
    """Queries as long, and searches that take as long, as `env.params` allows."""
    env = SearchEnv(SearchEnvOptions(corpus=str(corpus), max_query_chars=3000, timeout_s=45.0))
    retriever = env._retriever
    try:
        assert await retriever.search("author Tamo " + "x" * 2900)
        with pytest.raises(RetrievalError, match="3001"):
            await retriever.search("x" * 3001)
        command = Path(f"/proc/{retriever.server.pid}/cmdline").read_text().split("\0")
        assert command[command.index("--timeout") + 1] == "45"
    finally:
        retriever.close()


async def test_a_server_that_cannot_be_started_is_tried_once_for_all_who_wait(tmp_path):
    retriever = Retriever(corpus=str(tmp_path / "missing.jsonl"), start_timeout_s=100)
    began = time.monotonic()
    found = await asyncio.gather(*[retriever.search("x") for _ in range(50)], return_exceptions=True)
    assert all(isinstance(error, RetrievalError) and "no corpus" in str(error) for error in found)
    with pytest.raises(RetrievalError, match="no corpus"):
        await retriever.search("x")
    assert time.monotonic() - began < 60
