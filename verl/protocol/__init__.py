"""Types that all packages share: `DataProto` for batches, `generate` for engines.

Names that need torch are imported on demand, so that configurations and environments load without
it. Names from `verl.compat` are for code written for verl.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from verl.protocol.generate import (
    GenerateRequest,
    Generation,
    RolloutClient,
    RolloutError,
    SamplingParams,
    StopReason,
)
from verl.protocol.padding import DataProtoConfig

if TYPE_CHECKING:
    from verl.compat.future import BatchData, DataProtoFuture
    from verl.compat.padding import _padding_size_key
    from verl.compat.reshape import (
        all_gather_data_proto,
        allgather_dict_tensors,
        collate_fn,
        fold_batch_dim,
        pad_dataproto_to_divisor,
        unfold_batch_dim,
        unpad_dataproto,
    )
    from verl.protocol.arrays import (
        deep_equal,
        list_of_dict_to_dict_of_list,
        union_numpy_dict,
        union_tensor_dict,
        union_two_dict,
    )
    from verl.protocol.data_proto import DataProto, DataProtoItem
    from verl.protocol.serialization import (
        deserialize_single_tensor,
        deserialize_tensordict,
        serialize_single_tensor,
        serialize_tensordict,
    )

__all__ = [
    "BatchData", "DataProto", "DataProtoConfig", "DataProtoFuture", "DataProtoItem", "GenerateRequest",
    "Generation", "RolloutClient",
    "RolloutError", "SamplingParams", "StopReason", "_padding_size_key", "all_gather_data_proto",
    "allgather_dict_tensors", "collate_fn",
    "deep_equal",
    "deserialize_single_tensor", "deserialize_tensordict", "fold_batch_dim", "list_of_dict_to_dict_of_list",
    "pad_dataproto_to_divisor", "serialize_single_tensor", "serialize_tensordict", "unfold_batch_dim",
    "union_numpy_dict",
    "union_tensor_dict", "union_two_dict", "unpad_dataproto",
]  # fmt: skip
_ON_DEMAND = {
    "verl.protocol.arrays": "deep_equal list_of_dict_to_dict_of_list union_numpy_dict union_tensor_dict union_two_dict",
    "verl.protocol.data_proto": "DataProto DataProtoItem",
    "verl.protocol.serialization": (
        "deserialize_single_tensor deserialize_tensordict serialize_single_tensor serialize_tensordict"
    ),
    "verl.compat.future": "BatchData DataProtoFuture",
    "verl.compat.padding": "_padding_size_key",
    "verl.compat.reshape": (
        "all_gather_data_proto allgather_dict_tensors collate_fn fold_batch_dim "
        "pad_dataproto_to_divisor unfold_batch_dim unpad_dataproto"
    ),
}
_MODULE = {name: module for module, names in _ON_DEMAND.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name not in _MODULE:
        raise AttributeError(f"module 'verl.protocol' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_MODULE[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
