"""Split then combine is the identity, padding weighs nothing, and ranks get equal shares."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from verl.protocol import DataProto
from verl.trainer.ppo.batching import (
    SubBatch,
    balance_order,
    combine_batches,
    pad_zero_weight,
    split_batch_by_wg_ids,
    trainable_rows,
    trim_padding,
)


def make_batch(lengths: list[tuple[int, int]], wg_ids: list[str]) -> DataProto:
    """Rows of (prompt, response) lengths, prompts left-padded and responses right-padded to the longest."""
    p, r = max(a for a, _ in lengths), max(b for _, b in lengths)
    n = len(lengths)
    prompt_mask = torch.stack([torch.arange(p) >= p - a for a, _ in lengths]).long()
    response_mask = torch.stack([torch.arange(r) < b for _, b in lengths]).long()
    attention = torch.cat([prompt_mask, response_mask], dim=1)
    ids = torch.arange(n * (p + r)).reshape(n, p + r) * attention
    tensors = {
        "prompts": ids[:, :p],
        "responses": ids[:, p:],
        "response_mask": response_mask,
        "input_ids": ids,
        "attention_mask": attention,
        "position_ids": (attention.cumsum(1) - 1).clamp(min=0),
        "rollout_log_probs": torch.rand(n, r) * response_mask,
    }
    return DataProto.from_dict(
        tensors=tensors,
        non_tensors={"wg_id": np.array(wg_ids, dtype=object), "row": np.arange(n).astype(object)},
    )


def same(a: DataProto, b: DataProto) -> bool:
    tensors = all(torch.equal(a.batch[k], b.batch[k]) for k in a.batch.keys())  # noqa: SIM118
    return tensors and all((a.non_tensor_batch[k] == b.non_tensor_batch[k]).all() for k in a.non_tensor_batch)


ROWS = st.lists(
    st.tuples(st.integers(1, 5), st.integers(1, 5), st.sampled_from("abc")), min_size=1, max_size=12
)


@settings(max_examples=40, deadline=None)
@given(ROWS)
def test_split_then_combine_is_the_identity(rows) -> None:
    batch = make_batch([(p, r) for p, r, _ in rows], [w for _, _, w in rows])
    parts = split_batch_by_wg_ids(batch)
    assert sum(len(p.batch) for p in parts.values()) == len(batch)
    assert all(set(p.batch.non_tensor_batch["wg_id"]) == {wg} for wg, p in parts.items())
    assert same(combine_batches(parts), batch)


@settings(max_examples=40, deadline=None)
@given(ROWS)
def test_trimmed_parts_combine_to_the_same_responses(rows) -> None:
    """Every part may be as narrow as its own longest row."""
    batch = make_batch([(p, r) for p, r, _ in rows], [w for _, _, w in rows])
    parts = {}
    for wg, part in split_batch_by_wg_ids(batch).items():
        trimmed = trim_padding(part.batch)
        assert trimmed.batch["responses"].shape[1] == int(part.batch.batch["response_mask"].sum(1).max())
        kept = {k: trimmed.batch[k] for k in ("responses", "response_mask", "rollout_log_probs")}
        parts[wg] = SubBatch(DataProto.from_dict(tensors=kept), part.rows)
    combined = combine_batches(parts)
    for name in ("responses", "response_mask", "rollout_log_probs"):
        assert torch.equal(combined.batch[name], batch.batch[name])


def test_parts_that_do_not_cover_the_batch_are_refused() -> None:
    parts = split_batch_by_wg_ids(make_batch([(1, 1), (2, 2), (1, 3)], ["a", "b", "a"]))
    with pytest.raises(ValueError, match="cover"):
        combine_batches({"a": parts["a"]})


def test_padding_rows_have_an_empty_mask_and_fill_the_ranks() -> None:
    batch = make_batch([(2, 3)] * 5, ["a"] * 5)
    padded, added = pad_zero_weight(batch, 4)
    assert (len(padded), added) == (8, 3)
    assert padded.batch["response_mask"][5:].sum() == 0
    assert same(padded[:5], batch)
    assert pad_zero_weight(batch, 5) == (batch, 0)


def test_ranks_get_equal_rows_and_about_equal_tokens() -> None:
    batch = make_batch([(1, n) for n in (50, 1, 48, 2, 46, 3, 44, 4)], ["a"] * 8)
    order = balance_order(batch, 2)
    assert sorted(order.tolist()) == list(range(8))
    tokens = batch.batch["attention_mask"].sum(1)[torch.as_tensor(order)]
    assert abs(int(tokens[:4].sum() - tokens[4:].sum())) <= 6


def test_rows_that_share_their_prompt_stay_on_one_rank_and_its_tokens_count_once() -> None:
    batch = make_batch([(1, 1), (3, 1), (5, 1), (1, 9), (2, 2), (3, 3), (1, 1), (2, 1)], ["a"] * 8)
    conversation = torch.tensor([0, 0, 0, 1, 2, 2, 3, 3])
    batch.batch["input_ids"] = 100 * conversation[:, None] + batch.batch["position_ids"]
    assert balance_order(batch, 2, share_prefixes=True).tolist() == [3, 4, 5, 6, 0, 1, 2, 7], (
        "the last conversation fits no rank whole"
    )


def test_rows_without_a_token_are_spread_over_no_rank_unless_there_is_nothing_else() -> None:
    batch = make_batch([(1, 2)] * 3, ["a"] * 3)
    batch.batch["response_mask"][1] = 0
    assert trainable_rows(batch).non_tensor_batch["row"].tolist() == [0, 2]
    batch.batch["response_mask"][:] = 0
    assert len(trainable_rows(batch)) == 3


def test_correction_weights_are_cut_and_padded_like_the_response() -> None:
    batch = make_batch([(1, 2), (1, 5)], ["a", "b"])
    batch.batch["rollout_is_weights"] = torch.rand(2, 5) * batch.batch["response_mask"]
    parts = {
        wg: SubBatch(trim_padding(part.batch), part.rows) for wg, part in split_batch_by_wg_ids(batch).items()
    }
    assert parts["a"].batch.batch["rollout_is_weights"].shape == (1, 2)
    assert torch.equal(combine_batches(parts).batch["rollout_is_weights"], batch.batch["rollout_is_weights"])
