"""Slots grow, copy and attend without changing what they hold."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from transformers import LlamaConfig
from transformers.masking_utils import sliding_window_causal_mask_function

from verl.workers.rollout.kv_cache import (
    Place,
    SlotCache,
    attend_fused,
    attend_in_steps,
    attending,
    slot_attention,
)

CONFIG = LlamaConfig(hidden_size=16, num_attention_heads=4, num_key_value_heads=2, num_hidden_layers=1)


def filled(length: int) -> tuple[SlotCache, torch.Tensor]:
    """A cache whose slot 2 holds the keys returned, and negated values, written in chunks."""
    torch.manual_seed(0)
    cache, keys = SlotCache(CONFIG, 4, 300, torch.float32, torch.device("cpu")), torch.randn(1, 2, length, 4)
    cache.reserve(length)
    for start in range(0, length, 20):
        piece = keys[:, :, start : start + 20]
        cache.begin_chunks([Place(2, start)])
        cache.update(piece, -piece, 0)
    return cache, keys


def read(cache: SlotCache, positions: list[int], length: int) -> tuple[torch.Tensor, torch.Tensor]:
    cache.begin_decode(torch.tensor(positions), length)
    return cache.update(torch.full((4, 2, 1, 4), 9.0), torch.full((4, 2, 1, 4), 8.0), 0)


def test_a_grown_cache_keeps_its_slots_and_stops_at_its_maximum():
    cache, expected = filled(40)
    for length, room in ((40, 64), (65, 128), (129, 256), (1000, 320)):
        cache.reserve(length)
        assert cache.allocated == room
    keys, values = read(cache, [0, 0, 40, 0], 64)
    assert keys.shape == (4, 2, 64, 4)
    assert torch.equal(keys[2, :, :40], expected[0]) and torch.equal(values[2, :, :40], -expected[0])
    assert (keys[2, :, 40] == 9).all() and (values[2, :, 40] == 8).all() and (keys[0, :, 0] == 9).all()


def test_a_copied_prompt_is_the_prompt_and_clearing_touches_one_slot():
    cache, expected = filled(40)
    cache.copy(torch.tensor([2, 2]), torch.tensor([0, 3]), 0, 40)
    cache.clear(torch.tensor([3]))
    keys, _ = read(cache, [50] * 4, 64)
    assert torch.equal(keys[0, :, :40], expected[0]) and torch.equal(keys[2, :, :40], expected[0])
    assert not keys[3, :, :40].any()


def test_both_attentions_agree_and_masked_blocks_change_no_bit():
    torch.manual_seed(0)
    query, key, value = torch.randn(16, 2, 3, 8), torch.randn(16, 2, 256, 8), torch.randn(16, 2, 256, 8)
    mask = torch.zeros(16, 1, 1, 256).masked_fill(
        torch.arange(256) > torch.arange(16)[:, None, None, None] * 4, float("-inf")
    )
    short = attend_in_steps(query, key[:, :, :64], value[:, :, :64], mask[..., :64], 0.3)
    assert torch.equal(attend_in_steps(query, key, value, mask, 0.3), short)
    torch.testing.assert_close(attend_fused(query, key, value, mask, 0.3), short)


def test_a_window_hides_in_chunks_and_in_steps_what_it_hides_in_a_full_pass():
    """A window of 50 over a text of 128 tokens: two chunks, or one token at a time."""
    torch.manual_seed(0)
    window = sliding_window_causal_mask_function(50)
    query, key, value = (torch.randn(1, heads, 128, 4) for heads in (4, 2, 2))
    places = torch.arange(128)
    seen = (places[None] <= places[:, None]) & (places[None] > places[:, None] - 50)
    expected = F.scaled_dot_product_attention(query, key, value, attn_mask=seen, enable_gqa=True)
    cache = SlotCache(CONFIG, 4, 300, torch.float32, torch.device("cpu"))
    cache.reserve(128)
    with attending(cache):
        for start in (0, 64):
            piece = slice(start, start + 64)
            cache.begin_chunks([Place(3, start)])
            mask = cache.mask(window, 50, 64)
            states = cache.update(key[:, :, piece], value[:, :, piece], 0)
            out, _ = slot_attention(torch.nn.Identity(), query[:, :, piece], *states, mask)
            torch.testing.assert_close(out.transpose(1, 2), expected[:, :, piece])
        assert mask.readings[0].first == 0 and cache.mask(window, 10, 64).readings[0].first == 0
        cache.begin_chunks([Place(3, 192)])
        assert cache.mask(window, 50, 64).readings[0].first == 128, "keys out of reach are not read"
        for place in (0, 49, 50, 127):
            cache.begin_decode(torch.tensor([0, 0, 0, place]), 128)
            rows = [states.expand(4, -1, -1, -1)[:, :, place : place + 1] for states in (query, key, value)]
            out, _ = slot_attention(
                torch.nn.Identity(), rows[0], *cache.update(*rows[1:], 0), cache.mask(window, 50, 1)
            )
            torch.testing.assert_close(out[3, 0], expected[0, :, place])


def test_chunks_of_one_text_in_one_pass_read_each_other_and_padded_rows_write_nothing():
    torch.manual_seed(0)
    query, key, value = (torch.randn(1, heads, 128, 4) for heads in (4, 2, 2))
    expected = F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
    cache = SlotCache(CONFIG, 4, 300, torch.float32, torch.device("cpu"))
    cache.reserve(128)
    rows = [
        torch.cat([states[:, :, :64], states[:, :, 64:], torch.full_like(states[:, :, :64], torch.nan)])
        for states in (query, key, value)
    ]
    cache.begin_chunks([Place(1, 0), Place(1, 64)])
    with attending(cache):
        out, _ = slot_attention(torch.nn.Identity(), rows[0], *cache.update(*rows[1:], 0), None)
    torch.testing.assert_close(out[:2].flatten(0, 1).transpose(0, 1)[None], expected)
    assert not out[2].any() and cache.chunks_are_finite() == [True, True]
    cache.begin_chunks([Place(0, 0), Place(2, 0), Place(3, 0)])
    cache.update(*rows[1:], 0)
    assert cache.chunks_are_finite() == [True, True, False]
