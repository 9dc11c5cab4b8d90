"""The rollout worker in this process and as a Ray actor, and the client that talks to it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import ray

from tests.waiting import until
from tests.workers.rollout.conftest import request, tiny_model
from verl.models.loader import ModelPathError
from verl.protocol.generate import EngineGoneError, EngineStuckError, Generation, RolloutClient, RolloutError
from verl.single_controller.local import LocalWorkerGroup
from verl.single_controller.ray import RayClassWithInitArgs, RayResourcePool, RayWorkerGroup
from verl.single_controller.worker_group import ClassWithInitArgs
from verl.trainer.config import ActorRolloutRefConfig, ModelConfig, RolloutConfig
from verl.workers.rollout.client import WorkerGroupClient
from verl.workers.rollout.hf_engine import HFEngine
from verl.workers.rollout.server import RolloutWorker
from verl.workers.weight_transfer.base import send_bucket
from verl.workers.weight_transfer.object_store import ObjectStore

REQUESTS = [request(5 + 7 * i, 4 + 3 * i, seed=i, n=1 + i % 2) for i in range(10)]


@pytest.fixture(scope="module")
def init(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder: Path = tmp_path_factory.mktemp("model")
    tiny_model().save_pretrained(folder)
    config = ActorRolloutRefConfig(model=ModelConfig(path=str(folder)), rollout=RolloutConfig(max_num_seqs=8))
    return {"config": config, "max_model_len": 128, "device": "cpu", "num_threads": 1, "seed": 0}


@pytest.fixture
def local(init: dict[str, Any]) -> Iterator[LocalWorkerGroup]:
    group = LocalWorkerGroup(class_with_init=ClassWithInitArgs(RolloutWorker, **init), timeout_s=60)
    group.init_model()
    yield group
    group.shutdown()


async def serve_all(group: Any, requests: list[Any] = REQUESTS) -> list[list[Generation]]:
    client = WorkerGroupClient(group, timeout_s=60)
    return await asyncio.gather(*(client.generate(req) for req in requests))


@pytest.mark.ray
def test_a_ray_actor_and_this_process_give_the_same_bits_and_a_killed_actor_is_an_error(
    ray_cluster, init, local
):
    actor = RayClassWithInitArgs(RolloutWorker, **init)
    actor.update_options({"max_concurrency": 100})
    group = RayWorkerGroup(RayResourcePool([1], use_gpu=False), actor, timeout_s=120)
    group.init_model()
    assert asyncio.run(serve_all(group)) == asyncio.run(serve_all(local))

    async def kill_while_generating() -> None:
        client = WorkerGroupClient(group, timeout_s=60)
        group.execute_all_sync("pause")
        waiting = asyncio.create_task(client.generate(REQUESTS[0]))
        await asyncio.sleep(0.5)
        ray.kill(group.workers[0])
        with pytest.raises(RolloutError, match=r"cannot be reached.*died"):
            await waiting
        with pytest.raises(RolloutError, match="cannot be reached"):
            await client.generate(REQUESTS[1])

    asyncio.run(kill_while_generating())
    group.shutdown()


def test_one_client_serves_one_event_loop_after_the_other(local):
    client = WorkerGroupClient(local, timeout_s=60)
    assert isinstance(client, RolloutClient)
    first = asyncio.run(client.generate(REQUESTS[0]))
    assert asyncio.run(client.generate(REQUESTS[0])) == first


async def test_an_error_reaches_only_the_request_that_caused_it(local):
    bad = replace(REQUESTS[0], prompt_ids=(1,) * 200)
    client = WorkerGroupClient(local, timeout_s=60)
    failed, good = await asyncio.gather(
        client.generate(bad), client.generate(REQUESTS[1]), return_exceptions=True
    )
    assert isinstance(failed, RolloutError) and "200 tokens" in str(failed)
    assert good == (await serve_all(local))[1]


async def test_a_request_that_takes_too_long_is_an_error_and_frees_its_slot(local):
    local.pause()
    client = WorkerGroupClient(local, timeout_s=0.2)
    with pytest.raises(RolloutError, match=r"waited 0\.2 s for request late"):
        await client.generate(replace(REQUESTS[0], request_id="late"))
    local.resume()

    def is_idle() -> bool:
        (stats,) = local.stats()
        return stats["active"] == stats["waiting"] == 0

    await until(is_idle)


async def test_requests_to_a_busy_engine_may_take_any_time_and_those_to_one_that_stops_may_not(
    local, monkeypatch
):
    """The second request waits for a slot; both replies take longer than the limit, and in between
    none ends.
    """
    step = HFEngine._step

    def slow_step(self: HFEngine) -> None:
        time.sleep(0.03)
        step(self)

    monkeypatch.setattr(HFEngine, "_step", slow_step)
    client = WorkerGroupClient(local, timeout_s=0.8)
    replies = await asyncio.gather(*(client.generate(request(5, 40, seed=i, n=8)) for i in range(2)))
    assert [len(reply) for reply in replies] == [8, 8] and local.stats()[0]["sampled"] == 2 * 8 * 40
    begun = asyncio.create_task(client.generate(request(5, 100, request_id="begun")))
    await until(lambda: local.stats()[0]["active"])
    local.pause()
    with pytest.raises(
        EngineStuckError,
        match=r"waited 0\.8 s for request begun on the rollout engine, which sampled no token meanwhile",
    ):
        await begun
    local.resume()


async def test_a_request_does_not_wait_for_a_poll_that_was_cancelled(local):
    local.pause()
    client = WorkerGroupClient(local, timeout_s=60)
    waiting = asyncio.create_task(client.generate(REQUESTS[0]))
    await until(lambda: local.stats()[0]["waiting"])  # it has come
    next(task for task in asyncio.all_tasks() if task.get_name() == "rollout-poll").cancel()
    with pytest.raises(RolloutError, match="was cancelled"):
        await asyncio.wait_for(waiting, 60)
    local.resume()
    assert [await client.generate(REQUESTS[1])] == await serve_all(local, REQUESTS[1:2])


async def test_requests_to_an_engine_that_is_shut_down_fail_as_to_one_that_died(init):
    group = LocalWorkerGroup(class_with_init=ClassWithInitArgs(RolloutWorker, **init), timeout_s=60)
    group.init_model()
    group.pause()
    client = WorkerGroupClient(group, timeout_s=60)
    waiting = asyncio.create_task(client.generate(REQUESTS[0]))
    await until(lambda: group.stats()[0]["waiting"])
    await asyncio.to_thread(group.shutdown)
    for request_of_it in (waiting, client.generate(REQUESTS[1])):
        with pytest.raises(EngineGoneError):
            await asyncio.wait_for(request_of_it, 60)


async def test_new_weights_arrive_in_buckets_and_carry_their_version(local):
    before = await serve_all(local, REQUESTS[:1])
    tensors = dict(tiny_model(seed=1).named_parameters())
    names = sorted(tensors)
    for part in (names[:5], names[5:]):
        bucket = send_bucket(ObjectStore(), {name: tensors[name].detach() for name in part})
        local.update_weights(bucket.handle, bucket.shapes, 3, part[-1] == names[-1])
    after = await serve_all(local, REQUESTS[:1])
    assert after[0][0].version == 3 and after[0][0].token_ids != before[0][0].token_ids


class Slow:
    """An engine, and the transfer of its weights: one of the two takes until `free` is set for a bucket."""

    def __init__(self, waits: bool) -> None:
        self.waits, self.events = waits, list[str]()
        self.busy, self.free = threading.Event(), threading.Event()

    def wait(self) -> None:
        self.busy.set()
        assert self.free.wait(60)

    def receive(self, handle: str) -> dict[str, int]:
        if not self.waits:
            self.wait()
        return {"a": 0}

    def update_weights(self, tensors: Mapping[str, int], *, version: int, **_: Any) -> None:
        self.events.append(f"begin {version}")
        if self.waits:
            self.wait()
        self.events.append(f"end {version}: {dict(tensors)}")

    def stats(self) -> dict[str, float]:
        self.events.append("stats")
        return {}

    async def generate(self, request: Any) -> list[Generation]:
        self.events.append("request")
        return []

    def __getattr__(self, name: str) -> Any:
        return lambda *_: self.events.append(name)


@pytest.mark.parametrize("waits", [True, False])
async def test_the_loop_of_the_worker_is_free_while_a_bucket_is_loaded_and_what_changes_the_engine_waits(
    init, waits
):
    worker, engine = RolloutWorker(**init), Slow(waits)
    worker._engine, worker._transfer = engine, engine
    first = asyncio.create_task(worker.update_weights("", {"a": (1,)}, 1, False))
    while not engine.busy.is_set():
        await asyncio.sleep(0.01)
    asked = asyncio.create_task(worker.generate(REQUESTS[0]))
    calls = [worker.abort("x"), worker.pause(), worker.resume(), worker.wake(), worker.sleep()]
    changes = [asyncio.create_task(call) for call in calls]
    second = asyncio.create_task(worker.update_weights("", {"a": (1,)}, 2, True))
    await worker.stats()
    await asyncio.sleep(0.1)
    assert not any(task.done() for task in (first, asked, second, *changes))
    engine.free.set()
    await asyncio.gather(first, asked, second, *changes)
    of_first = ["begin 1", "end 1: {'a': 0}"]
    of_first.insert(1 if waits else 0, "stats")
    assert engine.events[:3] == of_first
    assert sorted(engine.events[3:-2]) == ["abort", "pause", "request", "resume", "sleep", "wake"], (
        "after the bucket in progress"
    )
    assert engine.events[-2:] == ["begin 2", "end 2: {'a': 0}"]


async def test_what_is_done_when_the_wait_ends_is_not_lost(local):
    await local.call_async("submit", "a session", [(7, REQUESTS[0])])
    async with asyncio.timeout(60):
        while not (found := await local.call_async("collect", "a session", 0.0)):
            await asyncio.sleep(0.01)
    (served,) = found
    assert served.number == 7 and [served.generations] == await serve_all(local, REQUESTS[:1])


def test_an_engine_without_a_model_says_what_to_do(init):
    worker = RolloutWorker(**init)
    with pytest.raises(RolloutError, match="call init_model first"):
        asyncio.run(worker.generate(REQUESTS[0]))


@pytest.mark.parametrize(
    ("path", "name", "error"), [("/nowhere/at/all", "hf", ModelPathError), (None, "magic", ValueError)]
)
def test_a_wrong_path_or_engine_name_is_an_error(init, path, name, error):
    config = ActorRolloutRefConfig(model=ModelConfig(path=path), rollout=RolloutConfig(name=name))
    with pytest.raises(error, match=path or name):
        asyncio.run(RolloutWorker(**{**init, "config": config}).init_model())


def test_sleep_cancels_open_requests(local):
    before = asyncio.run(serve_all(local))
    asyncio.run(_submit(local, request(5, 100, seed=0)))
    local.sleep()
    assert local.stats()[0]["active"] == local.stats()[0]["waiting"] == 0
    local.wake()
    assert asyncio.run(serve_all(local)) == before


async def _submit(group: Any, req: Any) -> None:
    await group.call_async("submit", "a session that nobody collects", [(0, req)])
