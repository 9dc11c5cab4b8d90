"""What code written for verl's controller relies on beside its workers: pools, modes, hand-made methods,
groups of running actors.
"""

import logging
import socket
from typing import Any

import pytest
import ray
import torch
from tensordict import TensorDict

from verl import DataProto
from verl.protocol import BatchData, DataProtoFuture, allgather_dict_tensors
from verl.single_controller.base import ClassWithInitArgs, ResourcePool, Worker
from verl.single_controller.base.decorator import (
    Dispatch,
    Execute,
    _check_dispatch_mode,
    _check_execute_mode,
    get_predefined_dispatch_fn,
    register,
)
from verl.single_controller.base.worker import WorkerHelper, find_free_port
from verl.single_controller.local import LocalWorkerGroup
from verl.single_controller.ray.base import (
    RayClassWithInitArgs,
    RayResourcePool,
    RayWorkerGroup,
    func_generator,
)


class Doubler(Worker):
    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO)
    def double(self, data: DataProto) -> DataProto:
        return DataProto.from_dict({"out": 2 * data.batch["a"] + 100 * self.rank})

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO, blocking=False)
    def double_later(self, data: DataProto) -> DataProto:
        return self.double(data)

    @register(dispatch_mode=Dispatch.ALL_TO_ALL, execute_mode=Execute.RANK_ZERO)
    def first(self, value: int) -> tuple[int, int]:
        return self.rank, value

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def gather(self) -> list[Any]:
        torch.distributed.init_process_group("gloo")
        own = {"b": torch.full((1, 2), self.rank), "a": torch.tensor([10.0 + self.rank])}
        rows = allgather_dict_tensors(TensorDict(own, batch_size=1), size=2, group=None)
        columns = allgather_dict_tensors({"b": own["b"].T.contiguous().T}, size=2, group=None, dim=1)
        assert isinstance(rows, TensorDict) and rows.batch_size == torch.Size([2])
        return [rows["a"].tolist(), rows["b"].tolist(), columns["b"].tolist()]


def batch(rows: int = 4, **kwargs: Any) -> DataProto:
    return DataProto.from_dict({"a": torch.arange(float(rows))}, **kwargs)


def test_a_pool_is_called_for_its_processes() -> None:
    pool = ResourcePool([2, 1])
    assert pool() == [2, 1] and pool() is pool.store


def test_modes_are_listed_in_the_order_they_came() -> None:
    assert Execute.names() == ["ALL", "RANK_ZERO"] and Execute.values() == [Execute.ALL, Execute.RANK_ZERO]
    assert Dispatch.names()[:3] == ["RANK_ZERO", "ONE_TO_ALL", "ALL_TO_ALL"] and Dispatch.values() == list(
        Dispatch
    )


def test_the_checks_that_verls_tests_import_are_at_their_path() -> None:
    _check_dispatch_mode(Dispatch.ALL_TO_ALL)
    _check_execute_mode(Execute.ALL)
    for check in (_check_dispatch_mode, _check_execute_mode):
        with pytest.raises(AssertionError):
            check("ALL_TO_ALL")


def test_a_worker_says_what_its_environment_tells_it() -> None:
    assert Worker.env_keys()[:2] == ["WORLD_SIZE", "RANK"] and "CUDA_VISIBLE_DEVICES" in Worker.env_keys()
    assert issubclass(Worker, WorkerHelper)
    address, port = WorkerHelper().get_available_master_addr_port()
    assert address == "127.0.0.1" and int(port) > 0


def test_a_port_is_taken_from_a_range_and_a_full_range_is_an_error() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        assert port < find_free_port("127.0.0.1", [port, port + 50]) < port + 50
        with pytest.raises(RuntimeError, match=rf"no free port in the range \[{port}, {port + 1}\]"):
            find_free_port("127.0.0.1", [port, port + 1])


def test_batches_and_tensordicts_are_cut_and_joined_alike() -> None:
    for whole in (batch(), TensorDict({"a": torch.arange(4.0)}, batch_size=4)):
        assert BatchData(whole).is_chunkable() and not BatchData(whole).is_concatable()
        parts = BatchData(whole).chunk(chunks=2)
        assert BatchData(parts).is_concatable() and [len(part) for part in parts] == [2, 2]
        joined = BatchData(parts).concat()
        assert type(joined) is type(whole)
        assert (joined.batch if isinstance(joined, DataProto) else joined)["a"].tolist() == [0, 1, 2, 3]
    assert (
        not BatchData([1]).is_chunkable()
        and not BatchData([]).is_concatable()
        and not BatchData("text").is_concatable()
    )
    with pytest.raises(ValueError, match="at least one part"):
        BatchData([]).concat()


def test_methods_of_a_group_can_be_made_by_hand() -> None:
    group = LocalWorkerGroup(class_with_init=ClassWithInitArgs(Doubler), timeout_s=60)
    functions = get_predefined_dispatch_fn(Dispatch.DP_COMPUTE_PROTO)
    double = func_generator(group, "double", **functions, execute_fn=group.execute_all_async, blocking=True)
    assert double(batch()).batch["out"].tolist() == [0, 2, 4, 6]
    group.shutdown()


@pytest.mark.ray
def test_a_group_takes_verls_keywords_and_running_actors_need_no_class(
    cluster: None, caplog: pytest.LogCaptureFixture
) -> None:
    pool, spec = RayResourcePool([2], use_gpu=False), RayClassWithInitArgs(Doubler)
    with pytest.raises(ValueError, match="use_gpu=True, but the resource pool has no GPUs"):
        RayWorkerGroup(pool, spec, use_gpu=True)
    with pytest.raises(ValueError, match="give master_port too, or neither"):
        RayWorkerGroup(pool, spec, master_addr="127.0.0.1")
    with pytest.raises(ValueError, match="needs ray_cls_with_init"):
        RayWorkerGroup(pool)
    begin = find_free_port("127.0.0.1")
    with caplog.at_level(logging.WARNING):
        group = RayWorkerGroup(
            pool, spec, use_gpu=False, master_port_range=[begin, begin + 50], profile_steps=[1], timeout_s=300
        )
    assert "profile_steps has no effect here" in caplog.text
    assert begin <= group.master_port < begin + 50
    assert group.gather() == [[[10.0, 11.0], [[0, 0], [1, 1]], [[0, 0, 1, 1]]]] * 2

    assert {"double", "double_later", "first"} <= set(group._bind_worker_method(Doubler, func_generator))
    assert group.double(batch()).batch["out"].tolist() == [0, 2, 104, 106]
    assert group.double(batch(3, auto_padding=True)).batch["out"].tolist() == [0, 2, 104]
    later = group.double_later(batch())
    assert isinstance(later, DataProtoFuture) and later.get().batch["out"].tolist() == [0, 2, 104, 106]
    assert group.first(7) == (0, 7)
    refs = [ray.put(batch(1)), ray.put(batch(2))]
    assert BatchData(refs).is_concatable() and len(BatchData(refs).concat().get()) == 3

    attached = RayWorkerGroup.from_detached(worker_names=group.worker_names)
    assert attached.world_size == 2 and not hasattr(attached, "double")
    assert attached.execute_all_sync("get_cuda_visible_devices") == group.execute_all_sync(
        "get_cuda_visible_devices"
    )
    with pytest.raises(ValueError, match="no worker 'actor' in this group"):
        attached.spawn({"actor"})
    attached.shutdown()
    there = RayWorkerGroup(pool, spec, master_addr="127.0.0.1", master_port=str(begin), timeout_s=300)
    assert (there.master_address, there.master_port) == ("127.0.0.1", begin)
    assert there.execute_all_sync("get_master_addr_port") == [("127.0.0.1", str(begin))] * 2
    there.shutdown()
    group.shutdown()
    assert pool.pgs is None
