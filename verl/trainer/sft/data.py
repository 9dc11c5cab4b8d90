"""Token ids of conversations with a loss mask, cut into batches of similar length."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

IGNORED_LABEL = -100


@dataclass(frozen=True)
class TokenizedConversation:
    """Token ids of a conversation and, per token, whether it is part of an assistant message."""

    input_ids: tuple[int, ...]
    loss_mask: tuple[bool, ...]


def batches(
    rows: Sequence[TokenizedConversation],
    batch_size: int,
    *,
    shuffle: bool,
    bucket_batches: int,
    rng: random.Random,
) -> Iterator[list[TokenizedConversation]]:
    """Yield one epoch of batches; rows of a batch have similar lengths; without `shuffle`, windows
    are in the order of rows.
    """
    order = list(range(len(rows)))
    if shuffle:
        rng.shuffle(order)
    window = batch_size * max(1, bucket_batches)
    for start in range(0, len(order), window):
        chunk = (
            sorted(order[start : start + window], key=lambda i: len(rows[i].input_ids))
            if bucket_batches > 1
            else order[start:]
        )
        cuts = [chunk[i : i + batch_size] for i in range(0, min(len(chunk), window), batch_size)]
        rng.shuffle(cuts)
        for cut in cuts:
            yield [rows[i] for i in cut]


def collate(rows: Sequence[TokenizedConversation], pad_token_id: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return right-padded (input_ids, labels), both [bsz, longest]; labels are IGNORED_LABEL at
    tokens without a loss.
    """
    longest = max(len(row.input_ids) for row in rows)
    input_ids = torch.full((len(rows), longest), pad_token_id)
    labels = torch.full((len(rows), longest), IGNORED_LABEL)
    for i, row in enumerate(rows):
        ids = torch.tensor(row.input_ids)
        input_ids[i, : len(ids)] = ids
        labels[i, : len(ids)] = ids.masked_fill(~torch.tensor(row.loss_mask), IGNORED_LABEL)
    return input_ids, labels
