"""Slots grow, copy and attend without changing what they hold."""

from __future__ import annotations

import torch
from transformers import LlamaConfig

from verl.workers.rollout.kv_cache import SlotCache, attend_fused, attend_in_steps

CONFIG = LlamaConfig(hidden_size=16, num_attention_heads=4, num_key_value_heads=2, num_hidden_layers=1)


def prefilled(length: int) -> tuple[SlotCache, torch.Tensor]:
    """A cache whose slot 2 holds the keys returned, and negated values."""
    torch.manual_seed(0)
    cache, keys = SlotCache(CONFIG, 4, 300, torch.float32, torch.device("cpu")), torch.randn(1, 2, length, 4)
    cache.reserve(length)
    cache.begin_prefill(torch.tensor([2]))
    cache.update(keys, -keys, 0)
    return cache, keys


def read(cache: SlotCache, positions: list[int], length: int) -> tuple[torch.Tensor, torch.Tensor]:
    cache.begin_decode(torch.tensor(positions), length)
    return cache.update(torch.full((4, 2, 1, 4), 9.0), torch.full((4, 2, 1, 4), 8.0), 0)


def test_a_grown_cache_keeps_its_slots_and_stops_at_its_maximum():
    cache, expected = prefilled(40)
    for length, room in ((40, 64), (65, 128), (129, 256), (1000, 320)):
        cache.reserve(length)
        assert cache.allocated == room
    keys, values = read(cache, [0, 0, 40, 0], 64)
    assert keys.shape == (4, 2, 64, 4)
    assert torch.equal(keys[2, :, :40], expected[0]) and torch.equal(values[2, :, :40], -expected[0])
    assert (keys[2, :, 40] == 9).all() and (values[2, :, 40] == 8).all() and (keys[0, :, 0] == 9).all()


def test_a_copied_prompt_is_the_prompt_and_clearing_touches_one_slot():
    cache, expected = prefilled(40)
    cache.copy(torch.tensor([2, 2]), torch.tensor([0, 3]), 40)
    cache.clear(torch.tensor([3]))
    keys, _ = read(cache, [50] * 4, 64)
    assert torch.equal(keys[0, :, :40], expected[0]) and torch.equal(keys[2, :, :40], expected[0])
    assert not keys[3, :, :40].any()


def test_both_attentions_agree_and_masked_blocks_change_no_bit():
    torch.manual_seed(0)
    query, key, value = torch.randn(16, 2, 3, 8), torch.randn(16, 2, 256, 8), torch.randn(16, 2, 256, 8)
    mask = torch.zeros(16, 1, 1, 256).masked_fill(torch.arange(256) > torch.arange(16)[:, None, None, None] * 4, float("-inf"))
    short = attend_in_steps(query, key[:, :, :64], value[:, :, :64], mask[..., :64], 0.3)
    assert torch.equal(attend_in_steps(query, key, value, mask, 0.3), short)
    torch.testing.assert_close(attend_fused(query, key, value, mask, 0.3), short)
