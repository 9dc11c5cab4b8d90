"""The hand-written loop that whole steps are compared with computes transformers' model, and trains it."""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F

from benchmarks.shared.strong_loop import StrongLoop, largest_difference
from tests.models.families import FAMILIES, make_model


def test_its_logits_and_its_step_are_those_of_transformers() -> None:
    model = make_model(FAMILIES["qwen3"].config()).float()
    model.lm_head.weight = model.model.embed_tokens.weight
    loop = StrongLoop(copy.deepcopy(model), lr=1e-2, micro_rows=3)
    scale = model(input_ids=torch.arange(3, 9)[None], use_cache=False).logits.detach().abs().max()
    assert largest_difference(loop, model) < 1e-5 * float(scale)
    rows = torch.randint(3, 576, (8, 12), generator=torch.Generator().manual_seed(0))
    advantages = torch.linspace(-1, 1, 8)
    logits = model(input_ids=rows, use_cache=False).logits[:, 4:-1]
    losses = F.cross_entropy(logits.flatten(0, 1), rows[:, 5:].flatten(), reduction="none").view(8, 7)
    (losses * advantages[:, None]).mean().backward()
    parameters = list(model.parameters())
    torch.nn.utils.clip_grad_norm_(parameters, 1.0)
    torch.optim.AdamW(parameters, lr=1e-2, weight_decay=0.0).step()
    loop.update(rows, 5, advantages)
    layer = model.model.layers[1]
    expected = torch.cat([layer.mlp.gate_proj.weight, layer.mlp.up_proj.weight])
    torch.testing.assert_close(loop.blocks[1].gate_up, expected, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(loop.embedding, model.model.embed_tokens.weight, rtol=1e-3, atol=1e-4)


def test_replies_have_the_chosen_length_and_their_group() -> None:
    model = make_model(FAMILIES["qwen3"].config()).float()
    model.lm_head.weight = model.model.embed_tokens.weight
    loop = StrongLoop(model, lr=1e-3, micro_rows=4)
    assert loop.generate(torch.arange(3, 15).view(2, 6), group=3, tokens=5).shape == (6, 5)
