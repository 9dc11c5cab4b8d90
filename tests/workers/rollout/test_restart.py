"""An engine that dies is replaced once a step, and whoever waited asks the new one."""

import asyncio
import threading
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest

from tests.waiting import settle
from tests.workers.rollout.conftest import request
from verl.protocol.generate import EngineGoneError, GenerateRequest, Generation, RolloutClient, RolloutError
from verl.workers.rollout.restart import RestartingClient


class Mortal:
    """Serves until it dies, and then fails all requests in flight."""

    def __init__(self, name: int, lives: int) -> None:
        self.name, self.lives = name, lives

    async def generate(self, request: GenerateRequest) -> list[Generation]:
        self.lives -= 1
        await asyncio.sleep(0.01)
        if self.lives < 0:
            raise EngineGoneError(f"engine {self.name} is gone")
        if request.n == 7:
            raise RolloutError("no")
        return [Generation((self.name,), (0.0,), "stop")]


class Factory:
    """Starts engines that serve the given numbers of requests; None stands for an engine that cannot be
    started.
    """

    def __init__(self, *lives: int | None) -> None:
        self.lives, self.started = list(lives), 0

    def __call__(self) -> RolloutClient:
        self.started += 1
        lives = self.lives.pop(0)
        if lives is None:
            raise OSError("no memory")
        return Mortal(self.started, lives)


async def ask(client: RestartingClient, count: int) -> list[Generation]:
    return [
        replies[0]
        for replies in await asyncio.gather(*(client.generate(request(3, 1)) for _ in range(count)))
    ]


async def test_all_requests_of_a_dead_engine_run_again_on_one_new_engine() -> None:
    factory = Factory(100)
    client = RestartingClient(Mortal(0, 2), factory, "math")
    replies = await ask(client, 6)
    assert {reply.token_ids for reply in replies} == {(0,), (1,)} or {
        reply.token_ids for reply in replies
    } == {(1,)}
    assert (factory.started, client.restarts) == (1, 1)


async def test_an_engine_found_dead_is_replaced_at_once_and_only_once_a_step() -> None:
    factory = Factory(100, None)
    client = RestartingClient(Mortal(0, 0), factory, "math")
    client.replace(client.serving, EngineGoneError("found dead"))
    assert [reply.token_ids for reply in await ask(client, 2)] == [(1,), (1,)] and (
        factory.started,
        client.restarts,
    ) == (1, 1)
    with pytest.raises(EngineGoneError, match="dead again"):
        client.replace(client.serving, EngineGoneError("dead again"))
    client.allow()
    with pytest.raises(EngineGoneError, match="engine math died and could not be restarted: no memory"):
        client.replace(client.serving, EngineGoneError("found dead"))


async def test_an_engine_found_dead_by_a_request_and_by_another_thread_is_replaced_once() -> None:
    begun, factory = threading.Event(), Factory(100)

    def slow() -> RolloutClient:
        begun.set()
        time.sleep(0.2)
        return factory()

    client = RestartingClient(Mortal(0, 0), slow, "math")
    dead = client.serving
    asked = asyncio.create_task(ask(client, 3))
    await asyncio.to_thread(begun.wait)
    await asyncio.to_thread(client.replace, dead, EngineGoneError("found dead"))
    assert [reply.token_ids for reply in await asked] == [(1,)] * 3
    assert (factory.started, client.restarts) == (1, 1)


async def test_a_drained_engine_gets_no_request_until_it_is_released() -> None:
    client = RestartingClient(Mortal(0, 100), Factory(), "math")
    first = asyncio.create_task(ask(client, 3))
    await asyncio.sleep(0)
    await asyncio.wait_for(client.drain(), 60)
    assert first.done()
    second = asyncio.create_task(ask(client, 1))
    await asyncio.sleep(0.05)
    assert not second.done()
    client.release()
    await asyncio.wait_for(second, 60)


async def test_a_drain_of_an_engine_that_samples_nothing_ends_and_names_the_requests() -> None:
    """It lasts as long as the engine makes progress."""

    class Stuck(Mortal):
        progress_at = 0.0

        async def generate(self, request: GenerateRequest) -> list[Generation]:
            await asyncio.sleep(60)
            return []

    engine, clock = Stuck(0, 100), asyncio.get_running_loop().time
    client, since = RestartingClient(engine, Factory(), "math", limit_s=0.2), clock()
    names = ("step7/toy:1/0/0/0.0", "step7/toy:1/0/1/0.0")
    asked = [
        asyncio.create_task(client.generate(replace(request(3, 1), request_id=name, adapter=name[-5])))
        for name in names
    ]
    await asyncio.sleep(0.1)
    engine.progress_at = clock() + 0.1
    with pytest.raises(
        TimeoutError,
        match=f"^new weights of engine math wait for the replies to {names[0]}, {names[1]}, but it has sampled",
    ):
        await client.drain()
    assert clock() - since >= 0.4
    with pytest.raises(TimeoutError, match=f"replies to {names[1]}, but it has sampled no token for 0.2 s"):
        await client.drain("1")
    for task in asked:
        task.cancel()


async def test_a_drain_lasts_while_an_engine_is_replaced_and_its_requests_run_again() -> None:
    class Slow(Mortal):
        async def generate(self, request: GenerateRequest) -> list[Generation]:
            await asyncio.sleep(0.1 if self.lives < 1 else 0.2)
            return await super().generate(request)

    def restart() -> RolloutClient:
        time.sleep(1.0)
        return Slow(1, 100)

    client = RestartingClient(Slow(0, 0), restart, "math", limit_s=1.0)
    asked = asyncio.create_task(ask(client, 1))
    await settle()
    await asyncio.wait_for(client.drain(), 60)
    await asyncio.wait_for(asked, 60)
    assert client.restarts == 1


@pytest.mark.parametrize("adapter", ["a", None])
async def test_an_adapter_is_drained_alone_and_a_model_with_all_adapters(adapter: str | None) -> None:
    class Slow(Mortal):
        async def generate(self, request: GenerateRequest) -> list[Generation]:
            await asyncio.sleep(0.01)
            if request.adapter == "b" and adapter:
                await a_is_drained.wait()
            return []

    a_is_drained = asyncio.Event()
    client = RestartingClient(Slow(0, 100), Factory(), "math")
    open_ = {
        name: asyncio.create_task(client.generate(replace(request(3, 1), adapter=name)))
        for name in ("a", "b")
    }
    await asyncio.sleep(0)
    await asyncio.wait_for(client.drain(adapter), 60)
    assert open_["a"].done() and open_["b"].done() == (adapter is None)
    a_is_drained.set()
    later = {
        name: asyncio.create_task(client.generate(replace(request(3, 1), adapter=name)))
        for name in ("a", "b", None)
    }
    await asyncio.wait({*open_.values(), later[None], later["b"]}, timeout=60 if adapter else 0.2)
    assert {name: reply.done() for name, reply in later.items()} == {
        "a": False,
        "b": adapter is not None,
        None: adapter is not None,
    }
    client.release("b")
    await asyncio.sleep(0.1)
    assert not later["a"].done(), "released by its own update alone"
    client.release(adapter)
    await asyncio.wait_for(asyncio.gather(*later.values()), 60)


async def test_busy_seconds_are_those_with_a_request_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds, busy = 0.0, list[tuple[float, float]]()

    class Clocked(Mortal):
        async def generate(self, request: GenerateRequest) -> list[Generation]:
            nonlocal seconds
            replies = await super().generate(request)
            seconds += 1.0
            return replies

    clock = SimpleNamespace(perf_counter=lambda: seconds, time=lambda: seconds)
    monkeypatch.setattr("verl.workers.rollout.restart.time", clock)
    client = RestartingClient(
        Clocked(0, 100), Factory(), "math", lambda start, end: busy.append((start, end))
    )
    await ask(client, 20)
    seconds += 100.0
    await ask(client, 1)
    assert client.take_busy_seconds() == 21.0 and busy == [(0.0, 20.0), (120.0, 121.0)]
    assert client.take_busy_seconds() == 0.0


async def test_a_second_death_in_a_step_is_the_end_and_in_the_next_step_it_is_not() -> None:
    factory = Factory(0, 100)
    client = RestartingClient(Mortal(0, 0), factory, "math")
    with pytest.raises(EngineGoneError, match="engine 1 is gone"):
        await ask(client, 1)
    message = r"^engine math died twice in one step; fix the cause, then restart the run: engine 1 is gone$"
    with pytest.raises(EngineGoneError, match=message):
        await ask(client, 3)
    with pytest.raises(
        EngineGoneError, match=r"engine 1 is gone; requests that wait for it: step7/toy:1/0/0/0.0$"
    ):
        await client.generate(replace(request(3, 1), request_id="step7/toy:1/0/0/0.0"))
    assert factory.started == 1
    client.allow()
    assert [reply.token_ids for reply in await ask(client, 3)] == [(2,)] * 3


async def test_an_engine_that_cannot_be_restarted_says_why() -> None:
    client = RestartingClient(Mortal(0, 0), Factory(None), "math")
    with pytest.raises(EngineGoneError, match="engine math died and could not be restarted: no memory"):
        await ask(client, 1)


async def test_requests_that_fail_with_another_error_when_the_engine_dies_run_again_too() -> None:
    class Closed(Mortal):
        async def generate(self, request: GenerateRequest) -> list[Generation]:
            if request.seed == 0:
                return await super().generate(request)
            await asyncio.sleep(0.03)
            raise RolloutError("this worker group has been shut down")

    client = RestartingClient(Closed(0, 0), Factory(100), "math")
    replies = await asyncio.gather(*(client.generate(request(3, 1, seed=seed)) for seed in (0, 1, 2)))
    assert [reply.token_ids for (reply,) in replies] == [(1,)] * 3


async def test_other_errors_are_the_requests_own() -> None:
    factory = Factory()
    with pytest.raises(RolloutError, match="no"):
        await RestartingClient(Mortal(0, 9), factory, "math").generate(request(3, 1, n=7))
    assert factory.started == 0
