"""Worker groups: one class of workers behaves the same on Ray and in this process; Ray's processes, failures
and clean-up.
"""

import asyncio
import atexit
import gc
import os
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray
import torch

from tests.waiting import wait_until
from verl import DataProto
from verl.protocol import DataProtoFuture
from verl.single_controller.base import ClassWithInitArgs, Worker, WorkerDiedError, WorkerGroup
from verl.single_controller.base.decorator import (
    Dispatch,
    Execute,
    make_nd_compute_dataproto_dispatch_fn,
    register,
)
from verl.single_controller.base.worker_group import ArgumentLostError
from verl.single_controller.local import LocalResourcePool, LocalWorkerGroup
from verl.single_controller.ray import (
    RayClassWithInitArgs,
    RayResourcePool,
    RayWorkerGroup,
    create_colocated_worker_cls,
    merge_resource_pool,
    split_resource_pool,
)
from verl.workers.weight_transfer.object_store import put


class Adder(Worker):
    def __init__(self, offset: float = 0.0) -> None:
        super().__init__()
        self.offset = offset
        self._register_dispatch_collect_info("tp", dp_rank=0, is_collect=self.rank == self.world_size - 1)

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO)
    def add(self, data: DataProto) -> DataProto:
        data.batch["out"] = data.batch["a"] + self.offset + 100 * self.rank
        return data

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO, blocking=False)
    def add_later(self, data: DataProto) -> DataProto:
        return self.add(data)

    @register(dispatch_mode=make_nd_compute_dataproto_dispatch_fn("tp"))
    def add_replicated(self, data: DataProto) -> DataProto:
        return self.add(data)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def set_offset(self, offset: float) -> float:
        self.offset = offset
        return self.offset

    @register(dispatch_mode=Dispatch.ONE_TO_ALL, execute_mode=Execute.RANK_ZERO)
    def first(self, value: list[int]) -> tuple[int, list[int]]:
        return self.rank, value

    @register(dispatch_mode=Dispatch.RANK_ZERO, execute_mode=Execute.RANK_ZERO)
    def chief(self, value: list[int]) -> tuple[int, list[int]]:
        return self.rank, value

    @register(dispatch_mode=Dispatch.DP_COMPUTE)
    def each(self, value: int) -> int:
        return 10 * value + self.rank

    @register(dispatch_mode=Dispatch.DP_COMPUTE_METRIC)
    def total(self, data: DataProto) -> dict[str, float]:
        return {"sum": data.batch["a"].sum().item()}

    @register(dispatch_mode=Dispatch.DIRECT_ROLLOUT_METHOD)
    def direct(self) -> None:
        """Only on the actor itself."""

    @register(dispatch_mode=Dispatch.ONE_TO_ALL, blocking=False)
    def fail(self) -> None:
        raise KeyError("broken on purpose")

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def die_or_wait(self) -> None:
        if self.rank == self.world_size - 1:
            os._exit(1)
        time.sleep(240)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def lose_a_peer(self, dies_after_s: float) -> None:
        """As in a collective: who lives hears of the lost connection before Ray says who died."""
        if self.rank == self.world_size - 1:
            time.sleep(dies_after_s)
            os._exit(1)
        raise RuntimeError("Connection reset by peer")

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def give(self, rows: int) -> tuple[Any, int]:
        """A large value for another worker, and its rows for whoever passes it on."""
        return put(torch.arange(float(rows)).numpy()), rows

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def take(self, value: Any) -> float:
        return float(value.sum()) + self.offset

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def sleep(self, until: Path) -> None:
        """Sleep until there is a file."""
        wait_until(until.exists)

    def getenv(self, key: str) -> str | None:
        return os.environ.get(key)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def all_reduce(self) -> tuple[float, set[str]]:
        """Returns the sum over ranks, and the addresses that the process has listened on since they met."""
        from verl.workers.engine.sharding import init_mesh  # the other tests do without what it imports

        before = listening()
        init_mesh("cpu", self.rank, self.world_size)
        value = torch.tensor(float(self.rank + 1))
        torch.distributed.all_reduce(value)
        return value.item(), {address for address, _ in listening() - before}


def listening() -> set[tuple[str, int]]:
    """Addresses and ports on which this process listens."""
    return {
        (c.laddr.ip, c.laddr.port)
        for c in psutil.Process().net_connections()
        if c.status == psutil.CONN_LISTEN
    }


def negated(worker: Adder, data: DataProto) -> DataProto:
    """Runs on every worker, with the worker and its share."""
    data.batch["out"] = -data.batch["a"] - 100 * worker.rank
    return data


class Server(Worker):
    def __init__(self) -> None:
        super().__init__()
        self.inside, self.most, self.met = 0, 0, asyncio.Event()

    async def generate(self, x: int) -> int:
        self.inside += 1
        self.most = max(self.most, self.inside)
        if self.most > 1:
            self.met.set()
        with suppress(TimeoutError):
            await asyncio.wait_for(self.met.wait(), 30)
        self.inside -= 1
        return x + 1

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def concurrency(self) -> list[int]:
        return [self.most]

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def terminate(self, note: Path) -> None:
        atexit.register(note.touch)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(60)


def make_group(backend: str, cls: type, *args: Any) -> WorkerGroup:
    if backend == "ray":
        return RayWorkerGroup(
            RayResourcePool([1], use_gpu=False), RayClassWithInitArgs(cls, *args), timeout_s=60
        )
    return LocalWorkerGroup(LocalResourcePool(), ClassWithInitArgs(cls, *args), timeout_s=60)


def batch(rows: int = 4, **kwargs: Any) -> DataProto:
    return DataProto.from_dict(
        {"a": torch.arange(float(rows))}, {"l": [str(i) for i in range(rows)]}, meta_info={"t": 1}, **kwargs
    )


@pytest.mark.parametrize("backend", ["local", pytest.param("ray", marks=pytest.mark.ray)])
def test_both_backends_answer_alike(backend: str, ray_cluster: None) -> None:
    group = make_group(backend, Adder, 5.0)
    data = batch()
    out = group.add(data)
    assert (
        out.batch["out"].tolist() == [5, 6, 7, 8]
        and out.non_tensor_batch["l"].tolist() == list("0123")
        and out.meta_info == {"t": 1}
    )
    assert set(data.batch.keys()) == {"a"}, "the worker must not change the caller's batch"
    later = group.add_later(data)
    assert isinstance(later, DataProtoFuture) and later.get().batch["out"].tolist() == [5, 6, 7, 8]
    assert group.set_offset(1.0) == [1.0] and group.first([7]) == (0, [7])
    assert group.add(group.add_later(data)).batch["out"].tolist() == [1, 2, 3, 4]
    assert group.execute_all_sync("getenv", key="WORLD_SIZE") == ["1"]
    assert (group.chief([7]), group.each([3]), group.total(data)) == ((0, [7]), [30], [{"sum": 6.0}])
    assert group.execute_with_func_generator(negated, data).batch["out"].tolist() == [0, -1, -2, -3]
    assert group.execute_func_rank_zero(max, 3, 4) == 4
    with pytest.raises(AssertionError, match="argument 0 must be a list of 1 entries, one per worker"):
        group.each(3)
    with pytest.raises(NotImplementedError, match="Direct rollout call"):
        group.direct()
    failing = group.fail()
    with pytest.raises(KeyError, match="broken on purpose"):
        failing.get()
    with pytest.raises(AssertionError, match="expected a DataProto"):
        group.add([1])
    group.shutdown()
    group.shutdown()
    with pytest.raises(RuntimeError, match="shut down"):
        group.add(data)


@pytest.mark.parametrize("backend", ["local", pytest.param("ray", marks=pytest.mark.ray)])
def test_a_worker_hands_a_value_to_another_and_the_caller_never_has_it(
    backend: str, ray_cluster: None
) -> None:
    giver, taker = make_group(backend, Adder), make_group(backend, Adder, 0.5)
    value, rows = giver.give(1_000)[0]
    assert isinstance(value, ray.ObjectRef) == (backend == "ray") and rows == 1_000
    assert taker.take(value) == [499_500.5]
    if backend == "ray":
        check_a_lost_argument_is_not_the_death_of_the_receiving_worker(giver, taker)
    for group in (giver, taker):
        group.shutdown()


def check_a_lost_argument_is_not_the_death_of_the_receiving_worker(
    giver: WorkerGroup, taker: WorkerGroup
) -> None:
    value, _ = giver.give(1_000_000)[0]
    giver.shutdown()

    async def taken() -> None:
        await taker.call_async("take", value)

    lost = r"an argument of take for worker .*Adder_.* is lost, because the worker that held it died"
    with pytest.raises(ArgumentLostError, match=lost):
        while True:  # the death takes a moment to be known
            taker.take(value)
    with pytest.raises(ArgumentLostError, match=lost):
        asyncio.run(taken())
    assert taker.set_offset(1.0) == [1.0], "it lives"


@pytest.mark.parametrize("backend", ["local", pytest.param("ray", marks=pytest.mark.ray)])
def test_async_methods_serve_many_calls_at_once_on_any_loop(backend: str, ray_cluster: None) -> None:
    group = make_group(backend, Server)

    async def many(n: int) -> list[int]:
        return await asyncio.gather(*[group.call_async("generate", i) for i in range(n)])

    assert asyncio.run(many(8)) == list(range(1, 9))
    assert asyncio.run(many(2)) == [1, 2]
    assert group.concurrency()[0][0] > 1
    group.shutdown()


class Patient(Worker):
    ended = False

    async def wait(self) -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            Patient.ended = True


@pytest.mark.parametrize("shut_down", [True, False])
def test_what_a_local_worker_still_does_ends_with_its_group(shut_down: bool) -> None:
    Patient.ended = False
    group = make_group("local", Patient)
    group.call_async("wait")
    group.execute_all_sync("get_master_addr_port")  # the loop has begun to wait by then
    if shut_down:
        group.shutdown()
    del group
    gc.collect()
    assert Patient.ended
    assert not [thread for thread in threading.enumerate() if thread.name == "Patient loop"]


def test_the_local_backend_refuses_more_than_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="use the ray controller"):
        LocalResourcePool([2])
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(ValueError, match="WORLD_SIZE=4"):
        LocalWorkerGroup(LocalResourcePool(), ClassWithInitArgs(Adder))


@pytest.mark.ray
def test_two_ranks_split_the_batch_and_meet_over_loopback(ray_cluster: None, tmp_path: Path) -> None:
    pool = RayResourcePool([2], use_gpu=False)
    group = RayWorkerGroup(
        pool,
        RayClassWithInitArgs(ray.remote(Adder), offset=1.0),
        worker_env={"OMP_NUM_THREADS": "1"},
        timeout_s=90,
    )
    assert group.add(batch()).batch["out"].tolist() == [1, 2, 103, 104]
    assert group.add(group.add_later(batch())).batch["out"].tolist() == [1, 2, 103, 104]
    with pytest.raises(AssertionError, match="only support equal chunk"):
        group.add(batch(3))
    padded = batch(3, auto_padding=True)
    assert group.add(padded).batch["out"].tolist() == [1, 2, 103] and len(padded) == 3
    assert group.add_later(padded).get().batch["out"].tolist() == [1, 2, 103]
    assert group.add_replicated(batch(3)).batch["out"].tolist() == [101, 102, 103]
    assert (group.chief([7]), group.each([3, 4]), group.total(batch())) == (
        (0, [7]),
        [30, 41],
        [{"sum": 1.0}, {"sum": 5.0}],
    )
    assert group.execute_with_func_generator(negated, batch()).batch["out"].tolist() == [0, -1, -102, -103]
    assert group.execute_func_rank_zero(max, 3, 4) == 4
    assert ray.get(group.execute_all_async("getenv", ["RANK", "LOCAL_RANK"])) == ["0", "1"]
    assert group.execute_all_sync("getenv", "OMP_NUM_THREADS") == ["1", "1"]
    assert group.execute_all_sync("getenv", "MASTER_ADDR") == ["127.0.0.1"] * 2
    assert group.all_reduce() == [(3.0, {"127.0.0.1"})] * 2
    attached = RayWorkerGroup.from_detached(
        worker_names=group.worker_names, ray_cls_with_init=group.ray_cls_with_init
    )
    assert attached.set_offset(2.0) == [2.0, 2.0]
    attached.shutdown()
    with pytest.raises(TimeoutError, match=r"waited 0.2 s for sleep on .*:0, .*:1"):
        group.execute_all_async("sleep", tmp_path / "over").get(timeout=0.2)
    (tmp_path / "over").touch()
    started = time.monotonic()
    with pytest.raises(WorkerDiedError, match=r"Adder_.*:1 died while it ran die_or_wait"):
        group.die_or_wait()
    assert time.monotonic() - started < 200, "a dead rank must not wait for its living peer"
    group.shutdown()
    assert pool.pgs is None


@pytest.mark.ray
@pytest.mark.parametrize("on_a_loop", [False, True])
def test_the_rank_that_died_is_named_and_not_the_one_that_lost_its_connection(
    ray_cluster: None, on_a_loop: bool
) -> None:
    group = RayWorkerGroup(
        RayResourcePool([2], use_gpu=False), RayClassWithInitArgs(ray.remote(Adder)), timeout_s=90
    )

    async def waited() -> None:
        await group.execute_all_async("lose_a_peer", 1.0).wait()

    with pytest.raises(WorkerDiedError, match=r"Adder_.*:1 died while it ran lose_a_peer"):
        asyncio.run(waited()) if on_a_loop else group.lose_a_peer(1.0)
    group.shutdown()


@pytest.mark.ray
def test_sigterm_ends_a_worker_at_once_and_a_second_one_meets_no_exit_in_progress(
    ray_cluster: None, tmp_path: Path
) -> None:
    group = make_group("ray", Server)
    with pytest.raises(WorkerDiedError):
        group.terminate(tmp_path / "exits")
    group.shutdown()
    assert not (tmp_path / "exits").exists()


@pytest.mark.ray
def test_colocated_workers_share_processes_and_a_split_pool_its_bundles(ray_cluster: None) -> None:
    pool = RayResourcePool([2], use_gpu=False)
    parts = {"left": RayClassWithInitArgs(Adder, 1.0), "right": RayClassWithInitArgs(Adder, offset=2.0)}
    whole = RayWorkerGroup(pool, create_colocated_worker_cls(parts), timeout_s=90)
    groups = whole.spawn(parts)
    assert groups["left"].add(batch(2)).batch["out"].tolist() == [1, 102]
    assert groups["right"].add(batch(2)).batch["out"].tolist() == [2, 103]
    whole.fuse(parts)
    assert whole.right.execute_all_sync("getenv", "RANK") == ["0", "1"]
    groups["left"].shutdown()
    first, second = split_resource_pool(pool, 1)
    assert merge_resource_pool(first, second).world_size == 2 and second.start_bundle_index == 1
    alone = RayWorkerGroup(second, RayClassWithInitArgs(Adder), timeout_s=90)
    assert alone.execute_all_sync("getenv", "WORLD_SIZE") == ["1"]
    whole.shutdown()
    assert pool.pgs is not None and alone.set_offset(3.0) == [3.0], "another group still uses the pool"
    alone.shutdown()
    assert pool.pgs is None


@pytest.mark.ray
def test_what_cannot_start_says_why(ray_cluster: None) -> None:
    with pytest.raises(ValueError, match="WORLD_SIZE"):
        RayWorkerGroup(
            RayResourcePool([1], use_gpu=False), RayClassWithInitArgs(Adder), worker_env={"WORLD_SIZE": "2"}
        )
    with pytest.raises(TimeoutError, match="no room for"):
        RayWorkerGroup(RayResourcePool([64], use_gpu=False, timeout_s=1), RayClassWithInitArgs(Adder))
    with pytest.raises(AssertionError, match="divisor"):
        split_resource_pool(RayResourcePool([2], use_gpu=False), 3)
