"""Packed products round every row alike beside any others, follow new weights, and leave a model's
parameters as they are."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from tests.models.families import FAMILIES, make_model
from verl.models import packed
from verl.models.fused import fuse_norms, fuse_projections
from verl.models.packed import PACKED_ROWS, PLAIN_ROWS, pack_linears

# Whether all of their products are of linear layers.
WHOLE = {"qwen3": True, "llama-tied": True, "qwen2": True, "gemma2": True, "gpt2": False, "glm4_moe": False}
SMALL, LARGE = 1, 1 << 40
IDS = torch.arange(3, 35).view(16, 2)


def logits(model: Any, rows: int) -> torch.Tensor:
    with torch.inference_mode():
        return model(input_ids=IDS[:rows], use_cache=False).logits


@pytest.fixture(autouse=True)
def everything_is_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed, "LEAST_ELEMENTS", SMALL)


@pytest.mark.parametrize("name", WHOLE)
def test_a_packed_model_computes_what_the_plain_one_does(name: str) -> None:
    plain = make_model(FAMILIES[name].config()).float()
    model = copy.deepcopy(plain)
    fuse_projections(model)
    weights = pack_linears(model)
    assert weights.row_block == (PACKED_ROWS if WHOLE[name] else None)
    expected = logits(plain, 4)
    torch.testing.assert_close(logits(model, 4), expected, rtol=1e-5, atol=1e-5 * float(expected.abs().max()))
    assert model.state_dict().keys() == plain.state_dict().keys()
    assert all(torch.equal(value, plain.state_dict()[key]) for key, value in model.state_dict().items())
    # With a gradient the layers compute as before.
    assert torch.equal(
        model(input_ids=IDS, use_cache=False).logits, plain(input_ids=IDS, use_cache=False).logits
    )


@pytest.mark.parametrize(
    ("least", "block"), [(SMALL, PACKED_ROWS), (LARGE, PLAIN_ROWS), (1 << 15, PLAIN_ROWS)]
)
def test_rows_have_the_same_bits_beside_any_others(
    least: int, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed, "LEAST_ELEMENTS", least)
    model = make_model(FAMILIES["qwen3"].config()).float()
    fuse_norms(model), fuse_projections(model)
    assert pack_linears(model).row_block == block
    with torch.inference_mode():
        # One token a row, so that attention adds nothing up.
        def run(rows: int) -> torch.Tensor:
            return model(input_ids=IDS[:rows, :1], use_cache=False).logits

        expected = run(len(IDS))
        for rows in range(block, len(IDS), block):
            assert torch.equal(run(rows), expected[:rows]), rows


def test_new_weights_are_read_after_a_drop() -> None:
    model = make_model(FAMILIES["llama-tied"].config()).float()
    fuse_projections(model)
    weights = pack_linears(model)
    before = logits(model, 2)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)
    weights.drop()
    after = logits(model, 2)
    assert not torch.equal(after, before)
    plain = make_model(FAMILIES["llama-tied"].config()).float()
    plain.load_state_dict(model.state_dict())
    torch.testing.assert_close(after, logits(plain, 2), rtol=1e-5, atol=1e-5 * float(after.abs().max()))


def test_a_machine_whose_kernels_round_rows_differently_keeps_plain_products(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its kernel adds another bit to a row that has few beside it."""
    multiply = packed._multiply

    def uneven(states: torch.Tensor, *args: Any) -> torch.Tensor:
        return multiply(states, *args) * (1 + 2.0**-23 * (len(states) < 8))

    monkeypatch.setattr(packed, "_multiply", uneven)
    packed._trial.cache_clear()
    model = make_model(FAMILIES["qwen3"].config()).float()
    kinds = [type(module) for module in model.modules()]
    assert pack_linears(model).row_block is None
    assert [type(module) for module in model.modules()] == kinds
    packed._trial.cache_clear()


def test_no_rows_and_layers_of_one_word_have_the_output_of_a_plain_layer() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 1), torch.nn.Linear(1, 3, bias=False))
    plain = copy.deepcopy(model)
    assert pack_linears(model).row_block == PACKED_ROWS
    with torch.inference_mode():
        for shape in ((0, 8), (2, 0, 8), (5, 8), (2, 3, 8)):
            states = torch.randn(shape)
            torch.testing.assert_close(model(states), plain(states))
