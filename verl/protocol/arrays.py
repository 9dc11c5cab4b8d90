"""Functions that compare, build and merge columns of a batch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict


def as_object_array(values: Sequence[Any] | np.ndarray) -> np.ndarray:
    """Return a sequence as an object array with one entry (or row) per element; arrays are returned
    unchanged.
    """
    if isinstance(values, np.ndarray):
        return values
    try:
        return np.array(values, dtype=object)
    except ValueError:
        # numpy cannot broadcast elements that are arrays with partly equal shapes
        array = np.empty(len(values), dtype=object)
        for i, value in enumerate(values):
            array[i] = value
        return array


def deep_equal(left: Any, right: Any, _open: frozenset[tuple[int, int]] = frozenset()) -> bool:
    """Return whether both are equal by value: types must agree, NaN equals NaN; arrays and
    containers are compared recursively.

    Pairs that are already being compared (cycles) count as equal.
    """
    pair = (id(left), id(right))
    if left is right or pair in _open:
        return True
    if type(left) is not type(right):
        return False
    inner = _open | {pair}
    if isinstance(left, np.ndarray):
        if left.shape != right.shape or left.dtype != right.dtype:
            return False
        if left.dtype == object:
            return all(deep_equal(a, b, inner) for a, b in zip(left.flat, right.flat, strict=True))
        # Other kinds have no NaN, and `isnan` refuses texts.
        return bool(np.array_equal(left, right, equal_nan=left.dtype.kind in "fc"))
    if isinstance(left, torch.Tensor):
        # Nested tensors have no common shape, and `torch.equal` refuses them.
        if left.is_nested and right.is_nested:
            return left.layout == right.layout and deep_equal(left.unbind(), right.unbind(), inner)
        return left.shape == right.shape and left.dtype == right.dtype and torch.equal(left, right)
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(deep_equal(left[k], right[k], inner) for k in left)
    if isinstance(left, (list, tuple)):
        return len(left) == len(right) and all(
            deep_equal(a, b, inner) for a, b in zip(left, right, strict=True)
        )
    if isinstance(left, float):
        return left == right or (math.isnan(left) and math.isnan(right))
    return bool(left == right)


def type_name(value: Any) -> str:
    """Return the name of a value's type with its element types, such as `dict[str: list[int]]`.

    The element types of a list are those of its first three entries, of a dict those of its first
    entry.
    """
    if isinstance(value, np.ndarray):
        return f"ndarray{value.shape} ({value.dtype})"
    if isinstance(value, list):
        return f"list[{'|'.join(dict.fromkeys(type_name(item) for item in value[:3])) or '...'}]"
    if isinstance(value, tuple):
        return f"tuple({', '.join(type_name(item) for item in value)})"
    if isinstance(value, dict) and value:
        key, first_value = next(iter(value.items()))
        return f"dict[{type_name(key)}: {type_name(first_value)}]"
    return "dict" if isinstance(value, dict) else type(value).__name__


def union_tensor_dict(tensor_dict1: TensorDict, tensor_dict2: TensorDict) -> TensorDict:
    """Add to the first the columns that only the second has, in place.

    Raises AssertionError when batch sizes differ or a common column holds different values.
    """
    assert tensor_dict1.batch_size == tensor_dict2.batch_size, (
        f"Two tensor dict must have identical batch size. Got {tensor_dict1.batch_size} and "
        f"{tensor_dict2.batch_size}"
    )
    # iterating a TensorDict itself walks its rows
    first_columns = set(tensor_dict1.keys())
    for key in list(tensor_dict2.keys()):
        if key not in first_columns:
            tensor_dict1[key] = tensor_dict2[key]
        else:
            same = tensor_dict1[key] is tensor_dict2[key] or tensor_dict1[key].equal(tensor_dict2[key])
            assert same, f"{key} in tensor_dict1 and tensor_dict2 are not the same object"
    return tensor_dict1


def union_numpy_dict(
    tensor_dict1: dict[str, np.ndarray], tensor_dict2: dict[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Add to the first the arrays that only the second has, in place.

    Raises AssertionError when a common column holds different values.
    """
    for key, value in tensor_dict2.items():
        assert isinstance(value, np.ndarray), f"`{key}` must be a numpy array, got {type(value).__name__}"
        if key in tensor_dict1:
            same = deep_equal(tensor_dict1[key], value)
            assert same, f"`{key}` in tensor_dict1 and tensor_dict2 are not the same object."
        else:
            tensor_dict1[key] = value
    return tensor_dict1


def union_two_dict(dict1: dict[str, Any], dict2: dict[str, Any]) -> dict[str, Any]:
    """Add the entries of the second to the first, in place. Raise AssertionError for a common key
    with different values.
    """
    for key, value in dict2.items():
        if key in dict1:
            assert deep_equal(dict1[key], value), (
                f"{key} in meta_dict1 and meta_dict2 are not the same object"
            )
        dict1[key] = value
    return dict1


def list_of_dict_to_dict_of_list(list_of_dict: Sequence[dict[str, Any]]) -> dict[str, list[Any]]:
    """Return for each key the list of its values, in order; rows without the key are skipped."""
    columns: dict[str, list[Any]] = {}
    for row in list_of_dict:
        for key, value in row.items():
            columns.setdefault(key, []).append(value)
    return columns


def merge_meta_info(infos: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Merge the meta_info of several parts: `metrics` become a dict of lists (one value per part),
    other keys must agree.

    Raises AssertionError naming the key whose values differ.
    """
    merged: dict[str, Any] = {}
    metrics: list[dict[str, Any]] = []
    for info in infos:
        for key, value in info.items():
            if key == "metrics":
                if value is not None:
                    metrics.extend(value if isinstance(value, list) else [value])
            elif key in merged:
                agree = deep_equal(merged[key], value)
                assert agree, f"Conflicting values for meta_info key '{key}': {merged[key]!r} and {value!r}"
            else:
                merged[key] = value
    if metrics:
        merged["metrics"] = list_of_dict_to_dict_of_list(metrics)
    return merged
