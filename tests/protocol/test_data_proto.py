"""A DataProto behaves as verl's: what code written for verl 0.9 relies on."""

import pickle
from itertools import chain
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict

from verl import DataProto
from verl.protocol import DataProtoConfig, DataProtoItem, collate_fn, union_numpy_dict, union_tensor_dict


def make(rows: int = 6, **meta: Any) -> DataProto:
    labels = [chr(ord("a") + i) for i in range(rows)]
    return DataProto.from_dict(
        {"obs": torch.arange(rows), "act": torch.arange(rows * 2.0).view(rows, 2)},
        {"label": labels},
        meta_info=meta,
    )


def rows_of(data: Any) -> list[int]:
    assert [ord(label) - ord("a") for label in data.non_tensor_batch["label"]] == data.batch["obs"].tolist()
    return data.batch["obs"].tolist()


@pytest.mark.parametrize(
    "index",
    [
        [3, 1],
        np.array([3, 1]),
        torch.tensor([3, 1]),
        [False, True, False, True, False, False],
        [np.bool_(i in (1, 3)) for i in range(6)],
        np.array([i in (1, 3) for i in range(6)]),
        torch.tensor([i in (1, 3) for i in range(6)]),
        slice(1, 4, 2),
        slice(-3, None, -2),
        [],
    ],
)
def test_every_kind_of_index_selects_the_same_rows_of_tensors_and_objects(index: Any) -> None:
    expected = np.arange(6)[index if isinstance(index, slice) or len(index) else slice(0)]
    selected = make(6, name="x")[index]
    assert rows_of(selected) == expected.tolist()
    assert isinstance(selected.batch.batch_size, torch.Size) and selected.meta_info == {"name": "x"}


def test_an_integer_index_gives_one_item() -> None:
    item = make()[np.int64(-1)]
    assert isinstance(item, DataProtoItem)
    assert item.batch["obs"].item() == 5 and item.non_tensor_batch["label"] == "f"
    with pytest.raises(IndexError):
        make()[6]
    with pytest.raises(TypeError, match="Indexing with"):
        make()["obs"]
    with pytest.raises(IndexError, match="mask of 2"):
        make()[[True, False]]


def test_columns_of_different_length_are_refused() -> None:
    with pytest.raises(AssertionError, match="`act`"):
        DataProto.from_dict({"obs": torch.zeros(3), "act": torch.zeros(4)})
    with pytest.raises(AssertionError, match="label"):
        DataProto.from_dict({"obs": torch.zeros(3)}, {"label": ["a"]})
    with pytest.raises(AssertionError):
        DataProto.from_dict({"obs": torch.zeros(3, 2)}, num_batch_dims=2)
    with pytest.raises(AssertionError, match="numpy"):
        DataProto(non_tensor_batch={"label": ["a"]})
    with pytest.raises(ValueError, match="`label`"):
        DataProto.from_single_dict({"label": ["a"]})


def test_a_subclass_makes_its_own_kind() -> None:
    class Custom(DataProto):
        pass

    data = Custom.from_single_dict({"obs": torch.arange(4), "label": np.array(list("abcd"), dtype=object)})
    parts = [
        data[:2],
        data.select(["obs"]),
        data.repeat(2),
        data.pop(["obs"]),
        DataProto.concat([data, data]),
    ]
    assert {type(part) for part in [data, *parts]} == {Custom}


def test_len_of_batches_without_tensors() -> None:
    assert len(DataProto(non_tensor_batch={"a": np.array([1, 2], dtype=object)})) == 2
    assert len(DataProto(meta_info={"a": 1})) == len(DataProto(non_tensor_batch=None)) == 0


@settings(max_examples=30, deadline=None)
@given(rows=st.integers(1, 12), chunks=st.integers(1, 12))
def test_chunks_joined_again_are_the_batch(rows: int, chunks: int) -> None:
    data = make(rows, name="x")
    if rows % chunks:
        with pytest.raises(AssertionError, match="only support equal chunk"):
            data.chunk(chunks)
        return
    joined = DataProto.concat(data.chunk(chunks))
    assert rows_of(joined) == list(range(rows)) and joined.meta_info == {"name": "x"}
    assert [rows_of(part) for part in data.split(5)] == [
        list(range(s, min(s + 5, rows))) for s in range(0, rows, 5)
    ]


def test_concat_gathers_metrics_and_refuses_conflicts() -> None:
    parts = [make(2, metrics={"loss": 0.5}, t=1.0), make(2, metrics=[{"loss": 0.7}], t=1.0), make(2, extra=3)]
    assert DataProto.concat(parts).meta_info == {"metrics": {"loss": [0.5, 0.7]}, "t": 1.0, "extra": 3}
    with pytest.raises(AssertionError, match="Conflicting values for meta_info key 't'"):
        DataProto.concat([make(2, t=1.0), make(2, t=2.0)])
    with pytest.raises(ValueError, match="columns differ"):
        DataProto.concat([make(2), make(2).select(non_tensor_batch_keys=[])])


def test_union_adds_columns_and_refuses_other_values() -> None:
    data = make(3)
    other = DataProto.from_dict(
        {"obs": torch.arange(3), "rew": torch.ones(3)}, {"task": ["x", "y", "z"]}, meta_info={"a": 1}
    )
    assert data.union(other) is data
    assert (
        set(data.batch.keys()) == {"obs", "act", "rew"}
        and set(data.non_tensor_batch) == {"label", "task"}
        and data.meta_info == {"a": 1}
    )
    with pytest.raises(AssertionError, match="obs in tensor_dict1 and tensor_dict2 are not the same object"):
        data.union(DataProto.from_dict({"obs": torch.zeros(3)}))
    with pytest.raises(AssertionError, match="identical batch size"):
        union_tensor_dict(data.batch, make(2).batch)
    with pytest.raises(AssertionError, match="a in meta_dict1"):
        data.union(DataProto(batch=TensorDict({}, [3]), meta_info={"a": 2}))


def test_object_columns_compare_by_value_nan_and_cycles_included() -> None:
    def nested(last: Any) -> dict[str, np.ndarray]:
        return {"a": np.array([float("nan"), "x", np.array([1, last])], dtype=object)}

    union_numpy_dict(nested(2), nested(2))
    with pytest.raises(AssertionError, match="`a` in tensor_dict1"):
        union_numpy_dict(nested(2), nested(3))
    loops = [np.array([None], dtype=object) for _ in range(2)]
    for loop in loops:
        loop[0] = loop
    union_numpy_dict({"a": loops[0]}, {"a": loops[1]})
    with pytest.raises(AssertionError):
        union_numpy_dict({"a": loops[0]}, {"a": np.array([None], dtype=object)})


def test_select_pop_and_rename_name_columns() -> None:
    data = make(3, x=1, y=2)
    kept = data.select(["obs"], [], ["x"], deepcopy=True)
    assert set(kept.batch.keys()) == {"obs"} and kept.non_tensor_batch == {} and kept.meta_info == {"x": 1}
    popped = data.pop(["obs"], ["label"], ["y"])
    assert (
        set(popped.batch.keys()) == {"obs"}
        and set(popped.non_tensor_batch) == {"label"}
        and popped.meta_info == {"y": 2}
    )
    assert set(data.batch.keys()) == {"act"} and data.non_tensor_batch == {} and data.meta_info == {"x": 1}
    with pytest.raises(AssertionError, match="`obs`"):
        data.pop(["obs"])
    two = make(3)
    two.rename(["obs", "act"], ["act", "obs"])
    assert two.batch["obs"].shape == (3, 2)
    with pytest.raises(ValueError, match="same length"):
        two.rename(["obs"], ["a", "b"])
    with pytest.raises(TypeError, match="new_keys must be"):
        two.rename("obs", 3)


def test_repeats_and_unfolding() -> None:
    assert rows_of(make(3).repeat(2)) == [0, 0, 1, 1, 2, 2]
    assert rows_of(make(3).repeat(2, interleave=False)) == [0, 1, 2, 0, 1, 2]
    assert rows_of(make(3).sample_level_repeat(torch.tensor([2, 0, 1]))) == [0, 0, 2]
    with pytest.raises(AssertionError, match="3 repeat counts"):
        make(3).sample_level_repeat([1, 2])
    pairs = DataProto.from_dict(
        {"a": torch.arange(8).view(2, 4), "b": torch.arange(2)}, {"c": [["p", "q"], ["r", "s"]]}
    )
    unfolded = pairs.unfold_column_chunks(2, ["a", "c"])
    assert unfolded.batch["a"].tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]] and unfolded.batch[
        "b"
    ].tolist() == [0, 0, 1, 1]
    assert unfolded.non_tensor_batch["c"].tolist() == [["p"], ["q"], ["r"], ["s"]]


def test_reorder_works_in_place() -> None:
    data = make(4)
    data.reorder(torch.tensor([3, 0, 2, 1]))
    assert rows_of(data) == [3, 0, 2, 1]


def test_iterator_visits_every_row_once_an_epoch_and_repeats_with_the_seed() -> None:
    def visit(seed: int) -> list[list[int]]:
        parts = make(6, t=1).make_iterator(2, epochs=2, seed=seed, dataloader_kwargs={"shuffle": True})
        return [rows_of(part) for part in parts if part.meta_info == {"t": 1}]

    first = visit(1)
    assert sorted(chain(*first[:3])) == sorted(chain(*first[3:])) == list(range(6))
    assert first == visit(1) and first != visit(2)
    assert [rows_of(part) for part in make(4).make_iterator(2, epochs=1)] == [[0, 1], [2, 3]]
    with pytest.raises(AssertionError, match="mini-batches of 4"):
        make(6).make_iterator(4, epochs=1)


def test_items_collate_to_the_batch() -> None:
    data = make(3)
    assert rows_of(collate_fn([data[i] for i in range(3)])) == [0, 1, 2]


def test_padding_is_a_flag_of_the_batch_or_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not make().is_padding_enabled()
    assert DataProto.from_dict({"a": torch.zeros(1)}, auto_padding=True).is_padding_enabled()
    monkeypatch.setenv("VERL_AUTO_PADDING", "1")
    assert make().is_padding_enabled() and DataProtoConfig.auto_padding
    data = make(4)
    data.padding(2)
    data.padding(1, "first")
    assert rows_of(data) == [0, 1, 2, 3, 3, 3, 0]
    assert [len(part) for part in data.chunk(3)] == [3, 2, 2]


def test_pickling_sends_the_rows_of_a_view_only_and_gives_writable_memory() -> None:
    big = DataProto.from_dict(
        {"a": torch.zeros(1000, 100), "b": torch.ones(1000, 2, dtype=torch.bfloat16)},
        {"c": list(range(1000))},
    )
    sent = pickle.dumps(big[:2], protocol=5)
    assert len(sent) < 3000
    buffers: list[pickle.PickleBuffer] = []
    data = pickle.dumps(big[:2], protocol=5, buffer_callback=buffers.append)
    # read-only, as Ray's shared memory
    received = pickle.loads(data, buffers=[bytes(buffer.raw()) for buffer in buffers])
    received.batch["a"] += 1
    assert received.batch["a"].sum() == 200 and received.batch["b"].dtype == torch.bfloat16
    assert pickle.loads(pickle.dumps(DataProto(meta_info={"a": 1}))).meta_info == {"a": 1}


def test_batches_compare_by_what_they_hold() -> None:
    nested = torch.nested.as_nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)
    assert DataProto() == DataProto() and make(3) == make(3) and make(3) != make(4)
    for other in (
        make(3, x=1),
        make(3).select(["obs"]),
        make(3).select(non_tensor_batch_keys=[]),
        DataProto(),
        3,
    ):
        assert make(3) != other
    assert DataProto(TensorDict({"n": nested}, batch_size=2)) == DataProto(
        TensorDict({"n": nested.clone()}, batch_size=2)
    )
    nan = {"t": torch.tensor([1.0])}
    assert DataProto.from_dict(nan, {"o": [float("nan")]}) == DataProto.from_dict(nan, {"o": [float("nan")]})


def test_select_shares_what_it_keeps_whole_and_copies_on_request() -> None:
    data = make(3, x=1)
    kept = data.select(["obs"])
    assert kept.meta_info is data.meta_info and kept.non_tensor_batch is data.non_tensor_batch
    own = data.select(deepcopy=True)
    own.meta_info["x"] = 2
    own.batch["obs"] += 1
    assert data == make(3, x=1)


def test_size_and_types_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    DataProto.from_dict({"t": torch.zeros(1, 1).expand(1024, 262144)}).print_size("here")
    assert capsys.readouterr().out == "here, Size of tensordict: 1.0 GB, size of non_tensor_batch: 0.0 GB\n"
    info = {"a": [1, "x", 2.0, None], "b": ({"k": [np.zeros(2)]}, 1), "c": {}, "d": [], "e": None}
    assert DataProto(meta_info=info).get_data_info().splitlines()[3:] == [
        "  a: list[int|str|float]",
        "  b: tuple(dict[str: list[ndarray(2,) (float64)]], int)",
        "  c: dict",
        "  d: list[...]",
        "  e: NoneType",
    ]


def test_to_moves_the_tensors_in_place_and_leaves_the_rest() -> None:
    data = DataProto.from_dict({"a": torch.arange(3.0)}, {"name": ["x", "y", "z"]}, meta_info={"t": 1})
    assert data.to("meta") is data
    assert data.batch["a"].device.type == "meta"
    assert (data.non_tensor_batch["name"].tolist(), data.meta_info) == (["x", "y", "z"], {"t": 1})
    empty = DataProto(meta_info={"t": 1})
    assert empty.to("meta") is empty
