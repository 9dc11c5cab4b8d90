"""Dispatch modes: the predefined ones, new ones, and what is refused."""

import pickle
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from tensordict import TensorDict

from verl import DataProto
from verl.compat.future import concat_parts
from verl.compat.tensordicts import chunk_tensordict
from verl.single_controller.base import Worker
from verl.single_controller.base.decorator import (
    DISPATCH_MODE_FN_REGISTRY,
    MAGIC_ATTR,
    Dispatch,
    Execute,
    dispatch_nd_compute_dataproto,
    get_predefined_dispatch_fn,
    get_predefined_execute_fn,
    register,
    register_dispatch_mode,
    update_dispatch_mode,
)


class Group:
    world_size = 4


@pytest.fixture
def registry() -> Iterator[None]:
    before = DISPATCH_MODE_FN_REGISTRY.copy()
    yield
    DISPATCH_MODE_FN_REGISTRY.clear()
    DISPATCH_MODE_FN_REGISTRY.update(before)
    if "TEST_MODE" in Dispatch:
        Dispatch.remove("TEST_MODE")


def test_modes_can_be_added_and_replaced(registry: None) -> None:
    def dispatch(worker_group: Any, *args: Any, **kwargs: Any) -> Any:
        return args, kwargs

    def collect(worker_group: Any, output: Any) -> Any:
        return output

    functions = {"dispatch_fn": dispatch, "collect_fn": collect}
    register_dispatch_mode("TEST_MODE", dispatch, collect)
    assert (
        get_predefined_dispatch_fn(Dispatch.TEST_MODE) == functions
        and Dispatch.TEST_MODE in Dispatch.__members__.values()
    )
    with pytest.raises(ValueError, match="already"):
        register_dispatch_mode("TEST_MODE", dispatch, collect)
    update_dispatch_mode(Dispatch.ONE_TO_ALL, dispatch, collect)
    assert get_predefined_dispatch_fn(Dispatch.ONE_TO_ALL) == functions


def test_members_stay_single_objects_across_processes() -> None:
    assert pickle.loads(pickle.dumps(Dispatch.DP_COMPUTE_PROTO)) is Dispatch.DP_COMPUTE_PROTO
    assert Dispatch["ALL_TO_ALL"] is Dispatch.ALL_TO_ALL and len(list(Execute)) == 2
    assert get_predefined_execute_fn(Execute.RANK_ZERO) == {"execute_fn_name": "execute_rank_zero"}
    with pytest.raises(AttributeError, match="ONE_TO_ALL"):
        _ = Dispatch.NO_SUCH_MODE


def test_register_notes_the_modes_and_refuses_others() -> None:
    @register(dispatch_mode=Dispatch.ONE_TO_ALL, blocking=False)
    def method(self: Any) -> int:
        return 1

    assert getattr(method, MAGIC_ATTR) == {
        "dispatch_mode": Dispatch.ONE_TO_ALL,
        "execute_mode": Execute.ALL,
        "blocking": False,
    }
    with pytest.raises(AssertionError, match="dispatch_mode must be"):
        register(dispatch_mode="ONE_TO_ALL")
    with pytest.raises(AssertionError, match="collect_fn"):
        register(dispatch_mode={"dispatch_fn": len})


def test_ranks_of_one_replica_receive_the_same_rows() -> None:
    args, _ = dispatch_nd_compute_dataproto(
        [0, 0, 1, 1], 2, Group(), DataProto.from_dict({"a": torch.arange(4)})
    )
    assert [part.batch["a"].tolist() for part in args[0]] == [[0, 1], [0, 1], [2, 3], [2, 3]]


def test_functions_travel_with_the_batch() -> None:
    def function(worker: Any, data: DataProto) -> DataProto:
        return data

    dispatch = get_predefined_dispatch_fn(Dispatch.DP_COMPUTE_PROTO_WITH_FUNC)["dispatch_fn"]
    args, _ = dispatch(Group(), function, DataProto.from_dict({"a": torch.arange(4)}))
    assert args[0] == [function] * 4 and [len(part) for part in args[1]] == [1] * 4
    with pytest.raises(NotImplementedError):
        get_predefined_dispatch_fn(Dispatch.DIRECT_ROLLOUT_METHOD)["dispatch_fn"](Group())


def test_tensordicts_with_ragged_columns_are_cut_and_joined() -> None:
    ragged = torch.nested.as_nested_tensor([torch.arange(n) for n in (4, 5, 6, 7)], layout=torch.jagged)
    data = TensorDict({"x": torch.arange(4), "n": ragged}, batch_size=[4])
    parts = chunk_tensordict(data, 2)
    assert [len(row) for row in parts[1]["n"].unbind()] == [6, 7] and parts[1]["x"].tolist() == [2, 3]
    assert [len(row) for row in concat_parts(parts)["n"].unbind()] == [4, 5, 6, 7]


def test_names_are_members_look_ups_and_attributes(registry: None) -> None:
    assert Dispatch.from_name("one_to_all") is Dispatch.ONE_TO_ALL and Dispatch.from_name("nothing") is None
    assert "RANK_ZERO" in dir(Execute)
    register_dispatch_mode("TEST_MODE", print, print)
    assert Dispatch.TEST_MODE is Dispatch.from_name("test_mode")
    Dispatch.remove("TEST_MODE")
    with pytest.raises(
        AttributeError, match=r"Dispatch has no member 'TEST_MODE'; its members are \['ALL_TO_ALL'"
    ):
        _ = Dispatch.TEST_MODE


def test_an_outer_worker_takes_the_mesh_of_its_inner_worker() -> None:
    inner, outer = Worker(), Worker()
    inner._register_dispatch_collect_info("actor", dp_rank=3, is_collect=False)
    outer.set_dispatch_collect("rollout", **inner.get_dispatch_collect())
    assert outer._query_dispatch_info("rollout") == 3 and outer.query_collect_info("rollout") is False
    with pytest.raises(AssertionError, match="rollout is already registered"):
        outer.set_dispatch_collect("rollout", **inner.get_dispatch_collect())
    address, port = outer.get_available_master_addr_port()
    assert address == "127.0.0.1" and int(port) > 0
