"""The words that the parts of the house share: `DataProto` for batches, `generate` for engines.

What needs torch is imported on demand: a configuration is read, and an environment played, without waiting for it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from verl.protocol.config import PADDING_SIZE_KEY as _padding_size_key
from verl.protocol.config import DataProtoConfig
from verl.protocol.generate import GenerateRequest, Generation, RolloutClient, RolloutError, SamplingParams, StopReason

if TYPE_CHECKING:
    from verl.protocol.arrays import (
        deep_equal,
        list_of_dict_to_dict_of_list,
        union_numpy_dict,
        union_tensor_dict,
        union_two_dict,
    )
    from verl.protocol.batch_data import BatchData
    from verl.protocol.data_proto import DataProto, DataProtoItem
    from verl.protocol.future import DataProtoFuture
    from verl.protocol.padding import pad_dataproto_to_divisor, unpad_dataproto
    from verl.protocol.reshape import all_gather_data_proto, allgather_dict_tensors, collate_fn, fold_batch_dim, unfold_batch_dim
    from verl.protocol.serialization import (
        deserialize_single_tensor,
        deserialize_tensordict,
        serialize_single_tensor,
        serialize_tensordict,
    )

__all__ = [
    "BatchData", "DataProto", "DataProtoConfig", "DataProtoFuture", "DataProtoItem", "GenerateRequest", "Generation", "RolloutClient",
    "RolloutError", "SamplingParams", "StopReason", "_padding_size_key", "all_gather_data_proto", "allgather_dict_tensors", "collate_fn",
    "deep_equal",
    "deserialize_single_tensor", "deserialize_tensordict", "fold_batch_dim", "list_of_dict_to_dict_of_list",
    "pad_dataproto_to_divisor", "serialize_single_tensor", "serialize_tensordict", "unfold_batch_dim", "union_numpy_dict",
    "union_tensor_dict", "union_two_dict", "unpad_dataproto",
]  # fmt: skip
_ON_DEMAND = {
    "arrays": "deep_equal list_of_dict_to_dict_of_list union_numpy_dict union_tensor_dict union_two_dict",
    "batch_data": "BatchData",
    "data_proto": "DataProto DataProtoItem",
    "future": "DataProtoFuture",
    "padding": "pad_dataproto_to_divisor unpad_dataproto",
    "reshape": "all_gather_data_proto allgather_dict_tensors collate_fn fold_batch_dim unfold_batch_dim",
    "serialization": "deserialize_single_tensor deserialize_tensordict serialize_single_tensor serialize_tensordict",
}
_MODULE = {name: module for module, names in _ON_DEMAND.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name not in _MODULE:
        raise AttributeError(f"module 'verl.protocol' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"verl.protocol.{_MODULE[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
