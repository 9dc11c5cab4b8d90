"""Saved batches are restored exactly, and other files are rejected."""

import pickle
from collections import OrderedDict, defaultdict
from datetime import UTC, date, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from verl import DataProto
from verl.protocol import (
    deep_equal,
    deserialize_single_tensor,
    deserialize_tensordict,
    serialize_single_tensor,
    serialize_tensordict,
)


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.int32, torch.bool]
)
@pytest.mark.parametrize("shape", [(3, 4, 5), (0, 2), ()])
def test_a_tensor_survives_serialisation(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    tensor = (torch.randn(shape) * 3).to(dtype)
    assert deep_equal(deserialize_single_tensor(serialize_single_tensor(tensor)), tensor)


@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_nested_tensors_keep_layout_and_components(layout: torch.layout) -> None:
    parts = [torch.randn(n, 3) for n in (2, 3, 1)]
    batch = TensorDict(
        {"n": torch.nested.as_nested_tensor(parts, layout=layout), "r": torch.ones(3, 2)}, batch_size=(3,)
    )
    back = deserialize_tensordict(serialize_tensordict(batch))
    assert back["n"].is_nested and back["n"].layout == layout and torch.equal(back["r"], batch["r"])
    assert all(torch.equal(a, b) for a, b in zip(back["n"].unbind(), parts, strict=True))


def everything() -> DataProto:
    return DataProto.from_dict(
        {"a": torch.arange(6).view(2, 3), "h": torch.ones(2, dtype=torch.bfloat16)},
        {
            "text": ["x", "é"],
            "mixed": [{"k": [1, 2.5, None, (True, b"b")]}, np.float32(0.5)],
            "arrays": [np.arange(3), np.zeros((2, 2))],
            "words": np.array(["one", "three"]),
            "wide": np.arange(4.0).reshape(2, 2),
        },
        meta_info={"t": 1.0, "tensor": torch.ones(2), "dict": {"a": {1, 2}}},
    )


def test_a_saved_batch_comes_back_whole(tmp_path: Path) -> None:
    data = everything()
    data.save_to_disk(tmp_path / "d.pt")
    back = DataProto.load_from_disk(tmp_path / "d.pt")
    assert all(deep_equal(back.batch[key], data.batch[key]) for key in ("a", "h"))
    assert deep_equal(back.non_tensor_batch, data.non_tensor_batch) and deep_equal(
        back.meta_info, data.meta_info
    )
    assert [path.name for path in tmp_path.iterdir()] == ["d.pt"]


PLAIN_OBJECTS: dict[str, Any] = {
    "ordered": OrderedDict([("b", 1), ("a", frozenset({1, "x"}))]),
    "defaults": [defaultdict(kind, {"k": kind()}) for kind in (list, int, dict, set, float, str)]
    + [defaultdict(None, {})],
    "dtypes": (torch.bfloat16, torch.int64, torch.bool),
    "devices": [torch.device("cpu"), torch.device("cuda", 1)],
    "times": [date(2026, 2, 3), datetime(2026, 2, 3, 4, 5, 6, 7), datetime(2026, 2, 3, tzinfo=UTC)],
    "slices": [slice(3), slice(None, -1, 2), slice("a", None)],
}


@pytest.mark.parametrize("kind", PLAIN_OBJECTS)
def test_plain_objects_are_saved_as_what_they_are(tmp_path: Path, kind: str) -> None:
    value = PLAIN_OBJECTS[kind]
    data = DataProto.from_dict(non_tensors={"column": [value, {"inside": value}]}, meta_info={"value": value})
    data.save_to_disk(tmp_path / "d.pt")
    back = DataProto.load_from_disk(tmp_path / "d.pt")
    assert deep_equal(back.meta_info["value"], value) and deep_equal(
        back.non_tensor_batch, data.non_tensor_batch
    )
    if kind == "defaults":
        assert [part.default_factory for part in back.meta_info["value"]] == [
            list,
            int,
            dict,
            set,
            float,
            str,
            None,
        ]


@pytest.mark.parametrize(
    "value", [defaultdict(lambda: 3), datetime(2026, 1, 1, tzinfo=timezone(timedelta(hours=1), "here"))]
)
def test_plain_objects_with_more_inside_than_plain_data_are_refused(tmp_path: Path, value: Any) -> None:
    with pytest.raises(TypeError, match=r"\['value'\].*cannot be saved"):
        DataProto(meta_info={"value": value}).save_to_disk(tmp_path / "d.pt")


@pytest.mark.parametrize(
    "content",
    [
        ("default", "eval", []),
        ("dtype", "torch.load"),
        ("date", "timedelta", "1"),
        ("device", "no such device"),
    ],
)
def test_a_file_names_no_type_but_the_known_ones(tmp_path: Path, content: Any) -> None:
    torch.save(("dict", [("format", 1), ("x", content)]), tmp_path / "x.pt")
    with pytest.raises(ValueError, match="not a saved batch"):
        DataProto.load_from_disk(tmp_path / "x.pt")


def test_what_cannot_be_saved_is_named_and_the_old_file_stays(tmp_path: Path) -> None:
    path = tmp_path / "d.pt"
    everything().save_to_disk(path)
    before = path.read_bytes()
    with pytest.raises(TypeError, match=r"\['lock'\].*Path"):
        DataProto(meta_info={"lock": Path("x")}).save_to_disk(path)
    assert path.read_bytes() == before and len(list(tmp_path.iterdir())) == 1


class Hostile:
    def __init__(self, target: str) -> None:
        self.target = target

    def __reduce__(self) -> Any:
        return (Path(self.target).touch, ())


def test_a_hostile_file_runs_no_code(tmp_path: Path) -> None:
    for name, save in {
        "p": lambda value, path: path.write_bytes(pickle.dumps(value)),
        "t": torch.save,
    }.items():
        with pytest.raises(pickle.UnpicklingError):
            path = tmp_path / f"{name}.pt"
            save(Hostile(str(tmp_path / "ran")), path)
            DataProto.load_from_disk(path)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "content", [{"a": 1}, ("tag", 1), ("dict", []), ("array", "|O", [1], torch.zeros(8, dtype=torch.uint8))]
)
def test_a_file_that_is_no_batch_is_refused(tmp_path: Path, content: Any) -> None:
    torch.save(content, tmp_path / "x.pt")
    with pytest.raises(ValueError, match=r"not a saved batch|no DataProto"):
        DataProto.load_from_disk(tmp_path / "x.pt")


def test_a_tensordict_carries_objects_and_meta_info() -> None:
    data = DataProto.from_dict(
        {"a": torch.arange(3)}, {"l": ["x", "y", "z"], "d": [{"k": 1}, {}, {"k": 2}]}, meta_info={"name": "n"}
    )
    whole = data.to_tensordict()
    assert whole["l"] == ["x", "y", "z"] and whole["name"] == "n"
    back = DataProto.from_tensordict(whole)
    assert deep_equal(back.non_tensor_batch, data.non_tensor_batch) and back.meta_info == {"name": "n"}
