"""Batches as one TensorDict, and TensorDicts split and concatenated by rows (nested tensors
included).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from tensordict import NonTensorData, NonTensorStack, TensorDict


def to_tensordict(
    batch: TensorDict | None, arrays: dict[str, np.ndarray], meta_info: dict[str, Any], rows: int
) -> TensorDict:
    """Return a TensorDict of the tensors, one stack of objects per non-tensor column, and one
    shared value per meta_info entry.
    """
    merged = TensorDict({} if batch is None else dict(batch.items()), batch_size=[rows])
    for key, value in arrays.items():
        merged[key] = NonTensorStack.from_list([NonTensorData(item) for item in value.tolist()])
    for key, value in meta_info.items():
        merged.set_non_tensor(key, value)
    return merged


def from_tensordict(
    tensor_dict: TensorDict, num_batch_dims: int = 1
) -> tuple[TensorDict, dict[str, np.ndarray], dict[str, Any]]:
    """Return the (tensors, non-tensor columns, meta_info) given to `to_tensordict`."""
    tensors: dict[str, torch.Tensor] = {}
    arrays: dict[str, np.ndarray] = {}
    info: dict[str, Any] = {}
    for key in list(tensor_dict.keys()):
        value = tensor_dict.get(key)
        if isinstance(value, torch.Tensor):
            tensors[key] = value
        elif isinstance(value, NonTensorStack):
            column: np.ndarray = np.empty(len(value), dtype=object)
            column[:] = value.tolist()
            arrays[key] = column
        else:
            info[key] = value.data
    return TensorDict(tensors, batch_size=tensor_dict.batch_size[:num_batch_dims]), arrays, info


def chunk_tensordict(data: TensorDict, chunks: int) -> list[TensorDict]:
    """Split a TensorDict into `chunks` equal parts by rows. Raise AssertionError when the rows do
    not divide.
    """
    rows = int(data.batch_size[0])
    assert rows % chunks == 0, f"only support equal chunk. Got size of TensorDict {rows} and chunk {chunks}."
    size = rows // chunks
    nested = {
        key: value.unbind()
        for key, value in data.items()
        if isinstance(value, torch.Tensor) and value.is_nested
    }
    plain = data.exclude(*nested) if nested else data
    parts = list(plain.split(size, dim=0)) if size else [plain.clone() for _ in range(chunks)]
    for i, part in enumerate(parts):
        for key, rows_of_key in nested.items():
            part[key] = torch.nested.as_nested_tensor(
                list(rows_of_key[i * size : (i + 1) * size]), layout=data[key].layout
            )
    return parts


def concat_tensordict(data: Sequence[TensorDict]) -> TensorDict:
    """Concatenate TensorDicts by rows; nested columns keep their layout."""
    nested = [key for key, value in data[0].items() if isinstance(value, torch.Tensor) and value.is_nested]
    joined = torch.cat([part.exclude(*nested) if nested else part for part in data], dim=0)
    for key in nested:
        components = [row for part in data for row in part[key].unbind()]
        joined[key] = torch.nested.as_nested_tensor(components, layout=data[0][key].layout)
    return joined
