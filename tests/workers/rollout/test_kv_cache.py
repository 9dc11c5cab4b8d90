"""Slots grow, copy and attend without changing what they hold."""

from __future__ import annotations

import torch
from transformers import LlamaConfig
from transformers.masking_utils import sliding_window_causal_mask_function

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
    mask = torch.zeros(16, 1, 1, 256).masked_fill(
        torch.arange(256) > torch.arange(16)[:, None, None, None] * 4, float("-inf")
    )
    short = attend_in_steps(query, key[:, :, :64], value[:, :, :64], mask[..., :64], 0.3)
    assert torch.equal(attend_in_steps(query, key, value, mask, 0.3), short)
    torch.testing.assert_close(attend_fused(query, key, value, mask, 0.3), short)


def test_a_ring_holds_the_last_tokens_of_a_prompt_and_gives_the_prompt_back_after_a_reply():
    """A window of 50 in a ring of 64 columns, under a prompt of 100 tokens in a bucket of 128."""
    torch.manual_seed(0)
    cache = SlotCache(CONFIG, 4, 300, torch.float32, torch.device("cpu"))
    keys = torch.randn(1, 2, 128, 4)
    cache.reserve(129)
    cache.begin_prefill(torch.tensor([2]), torch.tensor([99]))
    cache.update(keys, -keys, 0)
    cache.settle(50)
    assert cache.bytes == 2 * 2 * 4 * 2 * 64 * 4 * 4, (
        "keys and values, of replies and prompts, of 64 positions, whatever the length"
    )

    def columns(position: int) -> torch.Tensor:
        """The columns that slot 2 reads at a position."""
        seen, _ = read(cache, [0, 0, position, 0], 192)
        hidden = cache.mask(sliding_window_causal_mask_function(50), 50, 1).added[2, 0, 0] < 0
        assert int((~hidden).sum()) == 50
        return torch.where(hidden[:, None], 0.0, seen[2, 0])

    first = columns(100)
    for place in range(51, 100):
        assert torch.equal(first[place % 64], keys[0, 0, place])
    for position in range(101, 190):
        columns(position)
    cache.restore(torch.tensor([2]))
    assert torch.equal(columns(100), first)
    cache.copy(torch.tensor([2]), torch.tensor([0]), 100)
    assert torch.equal(read(cache, [100, 0, 0, 0], 192)[0][0], read(cache, [0, 0, 100, 0], 192)[0][2])
