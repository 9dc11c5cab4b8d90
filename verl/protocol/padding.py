"""Making a batch divisible by the number of workers, and undoing it."""

from __future__ import annotations

import logging

from verl.protocol.data_proto import DataProto

logger = logging.getLogger(__name__)


def pad_dataproto_to_divisor(data: DataProto, size_divisor: int) -> tuple[DataProto, int]:
    """Append rows from the start of the batch, over and over, until `size_divisor` divides it.

    Returns:
        the padded batch (the same object when nothing was missing) and the number of rows appended.
    """
    assert isinstance(data, DataProto), f"data must be a DataProto, got {type(data).__name__}"
    if len(data) == 0:
        logger.warning("padding a DataProto with no item, no changed made")
        return data, 0
    pad_size = -len(data) % size_divisor
    if pad_size == 0:
        return data, 0
    return data.select_idxs([i % len(data) for i in range(len(data) + pad_size)]), pad_size


def unpad_dataproto(data: DataProto, pad_size: int) -> DataProto:
    """Drop the last `pad_size` rows."""
    return data if pad_size == 0 else data[:-pad_size]  # type: ignore[return-value]
