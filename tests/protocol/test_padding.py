"""Padding to a divisor, folding, and their undoing."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from verl.protocol import (
    DataProto,
    fold_batch_dim,
    pad_dataproto_to_divisor,
    unfold_batch_dim,
    unpad_dataproto,
)


def make(rows: int) -> DataProto:
    return DataProto.from_dict(
        {"a": torch.arange(rows)}, {"l": [str(i) for i in range(rows)]}, meta_info={"m": 1}
    )


@settings(max_examples=40, deadline=None)
@given(rows=st.integers(1, 9), divisor=st.integers(1, 20))
def test_padding_wraps_around_and_unpadding_undoes_it(rows: int, divisor: int) -> None:
    padded, count = pad_dataproto_to_divisor(make(rows), divisor)
    assert len(padded) % divisor == 0 and count < divisor and len(padded) == rows + count
    assert padded.batch["a"].tolist() == [i % rows for i in range(rows + count)]
    assert padded.non_tensor_batch["l"].tolist() == [str(i % rows) for i in range(rows + count)]
    back = unpad_dataproto(padded, count)
    assert back.batch["a"].tolist() == list(range(rows)) and back.meta_info == {"m": 1}


def test_an_empty_batch_stays_empty() -> None:
    padded, count = pad_dataproto_to_divisor(DataProto(), 4)
    assert len(padded) == count == 0


def test_unfolding_undoes_folding() -> None:
    folded = fold_batch_dim(make(6), 3)
    assert folded.batch["a"].tolist() == [[0, 1], [2, 3], [4, 5]] and folded.non_tensor_batch["l"].tolist()[
        1
    ] == ["2", "3"]
    assert unfold_batch_dim(folded).batch["a"].tolist() == list(range(6))
    with pytest.raises(AssertionError, match="do not fold"):
        fold_batch_dim(make(6), 4)
