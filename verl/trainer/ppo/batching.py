"""Split a team's batch by policy (for critics by worker group), prepare the parts for their ranks,
and combine results in the original order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from verl.protocol import DataProto
from verl.trainer.ppo.core_algos.grouping import rows_by_value
from verl.utils.seqlen_balancing import get_seqlen_balanced_partitions

PROMPT_SIDE = ("prompts",)
RESPONSE_SIDE = ("responses", "response_mask", "reply_mask", "rollout_log_probs", "old_log_probs", "ref_log_prob", "rollout_is_weights",
                 "entropys", "advantages", "returns", "values", "token_level_scores", "token_level_rewards",
                 "token_rewards")  # fmt: skip
WHOLE = ("input_ids", "attention_mask", "position_ids")


@dataclass(frozen=True)
class SubBatch:
    """Rows of one policy or worker group; `rows` are their indices in the whole batch."""

    batch: DataProto
    rows: np.ndarray


def split_batch_by_wg_ids(batch: DataProto) -> dict[str, SubBatch]:
    """Return one sub-batch per worker group, in order of first appearance; rows keep their order."""
    return _split_batch(batch, "wg_id")


def split_batch_by_policies(batch: DataProto) -> dict[str, SubBatch]:
    """Return one sub-batch per policy, as `split_batch_by_wg_ids`: a worker group with adapters has
    several.
    """
    return _split_batch(batch, "policy_id")


def _split_batch(batch: DataProto, column: str) -> dict[str, SubBatch]:
    parts = rows_by_value(batch.non_tensor_batch[column])
    return {str(name): SubBatch(batch.select_idxs(rows), rows) for name, rows in parts.items()}


def combine_batches(parts: Mapping[str, SubBatch]) -> DataProto:
    """Return the inverse of a split by policies or worker groups: all rows in the original order.

    Tensors of different width (that of the longest row of each part) are padded with zeros on the
    right. Raises ValueError if the parts do not cover every row exactly once.
    """
    rows = np.concatenate([p.rows for p in parts.values()])
    if not np.array_equal(np.sort(rows), np.arange(len(rows))):
        raise ValueError(
            f"combine_batches: the parts cover rows {np.sort(rows).tolist()[:20]}..., expected "
            f"each of 0..{len(rows) - 1} once"
        )
    batches = [p.batch for p in parts.values()]
    tensors = {}
    for name in batches[0].batch.keys() if batches[0].batch is not None else ():
        columns = [b.batch[name] for b in batches]
        width = max((c.shape[1] for c in columns if c.dim() > 1), default=0)
        columns = [
            torch.nn.functional.pad(c, (0, width - c.shape[1])) if c.dim() == 2 and c.shape[1] < width else c
            for c in columns
        ]
        tensors[name] = torch.cat(columns)[torch.as_tensor(np.argsort(rows))]
    order = np.argsort(rows)
    non_tensors = {
        name: np.concatenate([b.non_tensor_batch[name] for b in batches])[order]
        for name in batches[0].non_tensor_batch
    }
    return DataProto.from_dict(tensors=tensors, non_tensors=non_tensors, meta_info=dict(batches[0].meta_info))


def trim_padding(batch: DataProto) -> DataProto:
    """Trim prompts (left) and responses (right) to the longest row of the batch."""
    tensors = batch.batch
    prompt_width = tensors["prompts"].shape[1]
    response_width = tensors["responses"].shape[1]
    mask = tensors["attention_mask"]
    prompt_len = int(mask[:, :prompt_width].sum(dim=1).max().item()) if len(batch) else 0
    used = mask[:, prompt_width:].any(dim=0).nonzero()
    response_len = max(int(used.max().item()) + 1 if len(used) else 1, 1)
    cut = prompt_width - prompt_len
    out = {}
    for name, value in tensors.items():
        if name in PROMPT_SIDE:
            value = value[:, cut:]
        elif name in WHOLE:
            value = value[:, cut : prompt_width + response_len]
        elif name in RESPONSE_SIDE:
            value = value[:, :response_len]
        out[name] = value.contiguous()
    if prompt_width == prompt_len and response_width == response_len:
        return batch
    return DataProto.from_dict(
        tensors=out, non_tensors=dict(batch.non_tensor_batch), meta_info=dict(batch.meta_info)
    )


def trainable_rows(batch: DataProto) -> DataProto:
    """Return the rows with an unmasked token, so that ranks have equal shares of trainable rows;
    all rows if none has one.
    """
    rows = np.flatnonzero(batch.batch["response_mask"].any(dim=1).cpu().numpy())
    return batch.select_idxs(rows) if 0 < len(rows) < len(batch) else batch


def pad_zero_weight(batch: DataProto, divisor: int) -> tuple[DataProto, int]:
    """Append copies of the first row with an empty `response_mask` until `divisor` divides the
    rows. Return (batch, rows added).
    """
    missing = -len(batch) % divisor
    if missing == 0:
        return batch, 0
    filler = batch.select_idxs(np.zeros(missing, dtype=np.int64))
    filler.batch["response_mask"] = torch.zeros_like(filler.batch["response_mask"])
    return DataProto.concat([batch, filler]), missing


def balance_order(batch: DataProto, ranks: int, share_prefixes: bool = False) -> np.ndarray:
    """Return a row order `[bsz]` with equal numbers of rows and similar numbers of tokens for each
    of `ranks`.

    With `share_prefixes` rows that have a prompt or a conversation in common stay on one rank where
    the numbers of rows allow it, and the tokens that they share count once.
    """
    if ranks == 1:
        return np.arange(len(batch))
    lengths = batch.batch["attention_mask"].sum(dim=1).tolist()
    if share_prefixes:
        return _shared_order(_related_rows(batch), ranks, len(batch) // ranks)
    return np.concatenate(
        [np.asarray(p) for p in get_seqlen_balanced_partitions(lengths, k_partitions=ranks, equal_size=True)]
    )


def _related_rows(batch: DataProto) -> list[tuple[list[int], int]]:
    """Return sets of rows with one prompt or one conversation, and the number of distinct tokens of
    each: a row belongs to the one before it, in lexicographic order, if it shares more than half of
    its prompt.
    """
    from verl.workers.engine.trie import shared_lengths, token_rows  # of shared prefixes alone

    rows = {name: batch.batch[name] for name in ("input_ids", "position_ids", "attention_mask")}
    paths = token_rows(rows | {"response_mask": batch.batch["response_mask"]})
    width = batch.batch["responses"].shape[1]
    prompts = batch.batch["attention_mask"][:, :-width].sum(dim=1).tolist()
    related: list[tuple[list[int], int]] = []
    for row, shared in zip(*shared_lengths(paths), strict=True):
        if related and 2 * shared > prompts[row]:
            members, tokens = related[-1]
            # a new list for each row would copy a conversation once a turn
            members.append(row)
            related[-1] = (members, tokens + len(paths[row]) - shared)
        else:
            related.append(([row], len(paths[row])))
    return related


def _shared_order(related: Sequence[tuple[list[int], int]], ranks: int, room: int) -> np.ndarray:
    """Give each set of rows, the most tokens first, to the rank with the fewest that has room; then
    fill the ranks with the rest.

    Args:
        related: rows and tokens of each set.
        ranks: number of ranks.
        room: rows of a rank.
    """
    parts = [list[int]() for _ in range(ranks)]
    tokens = [0] * ranks
    rest: list[int] = []
    for rows, count in sorted(related, key=lambda one: (-one[1], min(one[0]))):
        fitting = [rank for rank in range(ranks) if len(parts[rank]) + len(rows) <= room]
        if not fitting:
            rest += sorted(rows)
            continue
        rank = min(fitting, key=lambda rank: tokens[rank])
        parts[rank] += rows
        tokens[rank] += count
    for part in parts:
        missing = room - len(part)
        part += rest[:missing]
        rest = rest[missing:]
    return np.concatenate([np.sort(part) for part in parts])


def unpadded(out: DataProto, order: np.ndarray, padding: int) -> DataProto:
    """Return rows without the `padding` last ones that `pad_zero_weight` added before they were
    ordered by `order`.
    """
    restored = out.select_idxs(np.argsort(order))
    return restored.select_idxs(np.arange(len(order) - padding)) if padding else restored


def fit_width(out: DataProto, batch: DataProto) -> DataProto:
    """Pad `[bsz, *]` results on the right to the response width of the whole batch."""
    width = batch.batch["responses"].shape[1]
    tensors = {k: torch.nn.functional.pad(v, (0, width - v.shape[1])) for k, v in out.batch.items()}
    return DataProto.from_dict(tensors=tensors)
