"""Attention over packed rows equals transformers' own on padded rows."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import MistralConfig, MistralForCausalLM

from tests.models.families import FAMILIES, save_model
from tests.workers.engine.builders import ONE_PIECE, make_engine, make_rows
from verl.models.miniature import MiniatureError
from verl.workers.engine import MicroBatchRule, layout_check, trie
from verl.workers.engine.attention import packed_attention, plan_packing
from verl.workers.engine.layout import RowLayout
from verl.workers.engine.layout_check import choose_layout, training_randomness


def test_buckets_cover_the_packed_sequence_with_little_padding() -> None:
    lengths = [100, 90, 80, 40, 40, 9]
    buckets = plan_packing(lengths, torch.device("cpu")).buckets
    assert [(b.rows, b.width) for b in buckets] == [(3, 100), (2, 40), (1, 9)]
    assert [b.start for b in buckets] + [sum(lengths)] == [0] + [b.stop for b in buckets]
    assert [b.gather is None for b in buckets] == [False, True, True]


@pytest.mark.parametrize("order", [[5, 4, 4, 2, 1], [1, 5, 2, 4, 4]])
def test_tokens_attend_to_their_own_row_only(order: list[int]) -> None:
    torch.manual_seed(0)
    query, key = torch.randn(1, 4, sum(order), 8), torch.randn(1, 2, sum(order), 8)
    plan = plan_packing(order, torch.device("cpu"))
    out, _ = packed_attention(torch.nn.Module(), query, key, key, None, pack_plan=plan)
    start = 0
    for length in order:
        q, k = (
            query[:, :, start : start + length],
            key[:, :, start : start + length].repeat_interleave(2, dim=1),
        )
        scores = (q @ k.transpose(-1, -2) / 8**0.5).masked_fill(
            torch.ones(length, length).triu(1).bool(), float("-inf")
        )
        torch.testing.assert_close(out[:, start : start + length], (scores.softmax(-1) @ k).transpose(1, 2))
        start += length


def test_sliding_windows_are_kept(tmp_path: Path) -> None:
    config = MistralConfig(
        vocab_size=256, hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8, sliding_window=3,
    )  # fmt: skip
    torch.manual_seed(0)
    MistralForCausalLM(config).save_pretrained(tmp_path)
    rows = make_rows(6)
    packed = make_engine(tmp_path).score_all(rows, 1.0, ONE_PIECE).log_probs
    for attention in ("sdpa", "eager"):
        plain = make_engine(tmp_path, use_remove_padding=False, attn_implementation=attention)
        assert (
            packed - plain.score_all(rows, 1.0, MicroBatchRule(None, 6, packed=False)).log_probs
        ).abs().max() < 1e-5


def test_packed_rows_cannot_run_in_eager_attention(tiny_model_dir: Path) -> None:
    with pytest.raises(ValueError, match=r"eager.*use_remove_padding=false"):
        make_engine(tiny_model_dir, use_remove_padding=True, attn_implementation="eager")


def test_a_layout_that_is_not_exact_is_refused_with_the_difference_and_the_key(tmp_path: Path) -> None:
    save_model("phimoe", tmp_path)
    with pytest.raises(
        ValueError, match=r"differ by up to \d.*set actor_rollout_ref.model.use_remove_padding=auto"
    ):
        make_engine(tmp_path, use_remove_padding=True)


def test_a_window_that_no_row_of_the_check_crosses_is_said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    config = FAMILIES["mistral-window"].config()
    config.sliding_window = 77
    choose_layout(config)
    assert not caplog.records
    monkeypatch.setattr(layout_check, "miniature", copy.deepcopy)
    config.sliding_window = 78
    choose_layout(config)
    assert "sliding_window=78" in caplog.text


def test_a_model_without_a_miniature_is_run_in_the_safest_layout_and_that_is_said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(config: object) -> None:
        raise MiniatureError("no miniature of it can be built")

    monkeypatch.setattr(layout_check, "miniature", refuse)
    config = FAMILIES["llama"].config()
    config.vocab_size = 577
    choice = choose_layout(config, dtype=torch.bfloat16)
    assert choice.layout == RowLayout("equal", "eager")
    assert "it cannot be checked (no miniature of it can be built)" in str(choice.note("model"))
    wanted = choose_layout(config, use_remove_padding="true", attention="sdpa")
    assert wanted.layout == RowLayout("packed", "sdpa") and wanted.note("model") is None
    assert training_randomness(config) is None
    assert "cannot be checked before it is loaded: no miniature of it can be built" in caplog.text


def test_no_plan_is_an_error() -> None:
    states = torch.zeros(1, 1, 2, 4)
    with pytest.raises(ValueError, match="needs pack_plan"):
        packed_attention(torch.nn.Module(), states, states, states, None)


@pytest.mark.parametrize(
    ("key", "named"),
    [
        ("actor_rollout_ref.model", "actor_rollout_ref.actor.use_prefix_grouper: "),
        ("critic.model", "critic.use_prefix_grouper: "),
    ],
)
def test_branches_that_are_not_exact_are_not_used_and_a_line_says_so(
    monkeypatch: pytest.MonkeyPatch, key: str, named: str
) -> None:
    """Here a branch sees its own tokens alone, as a model with a state that cannot branch would."""
    plan = trie.plan_branches

    def without_paths(roots: Any, branches: Any, device: torch.device) -> Any:
        return plan(roots, [(path[:0], own) for path, own in branches], device)

    monkeypatch.setattr(trie, "plan_branches", without_paths)
    config = FAMILIES["llama"].config()
    config.vocab_size = 579 if key.startswith("critic") else 578
    choice = choose_layout(config)
    assert choice.layout == RowLayout("packed", "sdpa", (), "chains")
    note = choice.note(key)
    assert note is not None and note.startswith(named) and "differ by up to" in note
