"""Which ranks have a replica, and which replica serves a request: the one that knows the episode, unless it
is much busier than another.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from verl.protocol.generate import GenerateRequest, Generation, RolloutError, SamplingParams
from verl.single_controller.dispatch import registered_methods
from verl.single_controller.worker_group import WorkerGroup
from verl.trainer.config import ActorRolloutRefConfig, RolloutConfig
from verl.workers.rollout import server
from verl.workers.rollout.client import MAX_IMBALANCE, ReplicaClient, replica_client, start_engines
from verl.workers.rollout.server import RolloutWorker


@dataclass
class Held:
    """A replica that answers when it is released."""

    served: list[str] = field(default_factory=list)
    load: int = 0
    open: asyncio.Event = field(default_factory=asyncio.Event)

    async def generate(self, request: GenerateRequest) -> list[Generation]:
        self.served.append(request.request_id)
        self.load += 1
        await self.open.wait()
        self.load -= 1
        return []


def ask(client: ReplicaClient, name: str) -> asyncio.Task[list[Generation]]:
    return asyncio.create_task(client.generate(GenerateRequest((1,), SamplingParams(1), request_id=name)))


async def test_new_episodes_go_to_the_least_loaded_and_later_calls_to_the_same_replica() -> None:
    replicas = [Held(), Held(), Held()]
    client = ReplicaClient(replicas)
    tasks = []
    for episode in "abc":
        tasks.append(ask(client, f"train/1/{episode}/1.0"))
        await asyncio.sleep(0)
    for replica in replicas:
        replica.open.set()
    await asyncio.gather(*tasks)
    for episode in "cba":
        await ask(client, f"train/1/{episode}/1.1")
    assert [replica.served for replica in replicas] == [
        [f"train/1/{e}/1.0", f"train/1/{e}/1.1"] for e in "abc"
    ]


async def test_an_episode_leaves_a_replica_that_is_much_busier() -> None:
    busy, idle = Held(), Held()
    client = ReplicaClient([busy, idle])
    tasks = [ask(client, f"a/{i}") for i in range(MAX_IMBALANCE + 1)]
    await asyncio.sleep(0)
    assert (len(busy.served), len(idle.served)) == (MAX_IMBALANCE + 1, 0)
    tasks.append(ask(client, "a/last"))
    await asyncio.sleep(0)
    assert idle.served == ["a/last"]
    busy.open.set(), idle.open.set()
    await asyncio.gather(*tasks)


async def test_requests_without_a_name_are_spread() -> None:
    replicas = [Held(), Held()]
    client = ReplicaClient(replicas)
    tasks = []
    for _ in range(4):
        tasks.append(ask(client, ""))
        await asyncio.sleep(0)
    assert [len(replica.served) for replica in replicas] == [2, 2]
    for replica in replicas:
        replica.open.set()
    await asyncio.gather(*tasks)


class Recorded:
    """An engine that records its calls and answers every request with the ranks that it spans."""

    waits = True

    def __init__(self, gpus: Sequence[str]) -> None:
        self.gpus, self.calls = list(gpus), []

    async def generate(self, request: GenerateRequest) -> list[Generation]:
        self.calls.append(request.request_id)
        return []

    def update_weights(self, tensors: Any, **_: Any) -> None:
        self.calls.append(sorted(tensors))

    def stats(self) -> dict[str, float]:
        return {"active": 0.0}

    def __getattr__(self, name: str) -> Any:
        return lambda: self.calls.append(name)


class Ranks(WorkerGroup):
    """Workers of a group over several devices, in this process and on the caller's event loop."""

    def __init__(self, world_size: int, per_engine: int, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(None)
        config = ActorRolloutRefConfig(
            rollout=RolloutConfig(name="vllm", tensor_model_parallel_size=per_engine)
        )
        self.workers: list[RolloutWorker] = []
        for rank in range(world_size):
            monkeypatch.setenv("RANK", str(rank))
            self.workers.append(RolloutWorker(config, max_model_len=8, device="cuda", num_threads=0, seed=0))
            monkeypatch.setattr(self.workers[-1], "get_cuda_visible_devices", lambda rank=rank: f"GPU-{rank}")
        monkeypatch.setattr(server, "build_engine", lambda config, gpus, **_: Recorded(gpus))
        self._bind_worker_methods(RolloutWorker)

    @property
    def world_size(self) -> int:
        return len(self.workers)

    def _submit(self, method_name: str, calls: list[Any]) -> Any:
        return Results(
            [getattr(self.workers[rank], method_name)(*args, **kwargs) for rank, args, kwargs in calls]
        )

    @property
    def engines(self) -> list[Any]:
        return [worker._engine for worker in self.workers]


class Results(list[Any]):
    """What workers return, as a group's pending results."""

    def get(self) -> list[Any]:
        return [asyncio.run(value) if asyncio.iscoroutine(value) else value for value in self]

    async def wait(self) -> list[Any]:
        return [await value for value in self]


def test_the_first_rank_of_each_engine_has_it_and_gets_its_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    group = Ranks(6, 2, monkeypatch)
    start_engines(group, 2)
    assert [engine and engine.gpus for engine in group.engines] == [
        ["GPU-0", "GPU-1"],
        None,
        ["GPU-2", "GPU-3"],
        None,
        ["GPU-4", "GPU-5"],
        None,
    ]
    alone = Ranks(2, 1, monkeypatch)
    start_engines(alone, 1)
    assert [engine.gpus for engine in alone.engines] == [[], []]


def test_methods_for_all_ranks_run_on_those_with_an_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    group = Ranks(4, 2, monkeypatch)
    start_engines(group, 2)
    group.update_weights({"a": ("float32", (1,), b"")}, {"a": (1,)}, 1, True)
    for method in ("pause", "resume", "sleep", "wake"):
        getattr(group, method)()
    assert group.stats() == [{"active": 0.0}, None, {"active": 0.0}, None]
    done = [["a"], "pause", "resume", "sleep", "wake"]
    assert [engine and engine.calls for engine in group.engines] == [done, None, done, None]
    told = {name for name in registered_methods(RolloutWorker) if name in vars(RolloutWorker)}
    assert told == {"init_model", "update_weights", "stats", "pause", "resume", "sleep", "wake", "end"}, (
        "a new one needs a line here"
    )


async def test_requests_go_to_ranks_with_an_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    group = Ranks(6, 2, monkeypatch)
    await asyncio.gather(*(worker.init_model() for worker in group.workers))
    client = replica_client(group, 10.0, 2)
    await asyncio.gather(
        *(client.generate(GenerateRequest((1,), SamplingParams(1), request_id=f"{i}/0")) for i in range(6))
    )
    assert [engine and len(engine.calls) for engine in group.engines] == [2, None, 2, None, 2, None]
    with pytest.raises(
        RolloutError, match="rank 3 has no engine: its device belongs to the engine of rank 2; call that rank"
    ):
        await group.workers[3].generate(GenerateRequest((1,), SamplingParams(1)))
