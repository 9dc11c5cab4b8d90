"""The words that the parts of the house share: `DataProto` for batches, `generate` for engines."""

from verl.protocol.arrays import (
    deep_equal,
    list_of_dict_to_dict_of_list,
    union_numpy_dict,
    union_tensor_dict,
    union_two_dict,
)
from verl.protocol.batch_data import BatchData
from verl.protocol.config import PADDING_SIZE_KEY as _padding_size_key
from verl.protocol.config import DataProtoConfig
from verl.protocol.data_proto import DataProto, DataProtoItem
from verl.protocol.future import DataProtoFuture
from verl.protocol.generate import GenerateRequest, Generation, RolloutClient, RolloutError, SamplingParams, StopReason
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
