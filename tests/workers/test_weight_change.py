"""A change of all weights: each tensor shows in the log-probs, and the bits come back."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.models.families import FAMILIES, make_model
from verl.models.loader import persistent_buffers
from verl.workers.weight_change import WeightChange

IDS = torch.randint(3, 500, (1, 30), generator=torch.Generator().manual_seed(1))


def engine_of(model: torch.nn.Module) -> Any:
    return SimpleNamespace(model=model, loaded=nullcontext, adapters={}, buffers=persistent_buffers(model))


def bits(model: torch.nn.Module) -> dict[str, bytes]:
    return {
        name: bytes(value.contiguous().view(-1).view(torch.uint8).tolist())
        for name, value in model.state_dict().items()
    }


@torch.no_grad()
def log_probs(model: Any) -> torch.Tensor:
    return model(IDS).logits[0].log_softmax(-1)[:-1].gather(1, IDS[0, 1:, None])[-8:, 0]


@pytest.mark.parametrize("family", ["qwen3", "gemma3_text", "qwen3_moe", "deepseek_v3"])
def test_every_tensor_that_stays_as_it_was_shows(family: str) -> None:
    model = make_model(FAMILIES[family].config())
    before, old = bits(model), {name: value.clone() for name, value in model.state_dict().items()}
    change = WeightChange(engine_of(model))
    change.apply([None])
    changed = log_probs(model)
    for name, value in model.state_dict().items():
        new = value.clone()
        with torch.no_grad():
            value.copy_(old[name])
            assert float((log_probs(model) - changed).abs().mean()) > 2e-3, name
            value.copy_(new)
    change.undo()
    assert bits(model) == before


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_bits_of_any_values_come_back(dtype: torch.dtype) -> None:
    edge = torch.tensor([0.0, -0.0, 1e-45, -1e-40, 3e38, -3e38, float("inf"), 1.0], dtype=dtype)
    model = torch.nn.Module()
    for name, value in {"edge": edge, "zeros": torch.zeros(4, 2, dtype=dtype), "minus": -torch.zeros(3, dtype=dtype),
                        "scalar": torch.tensor(2.0, dtype=dtype),
                        "empty": torch.zeros(0, dtype=dtype)}.items():  # fmt: skip
        model.register_parameter(name, torch.nn.Parameter(value))
    before = bits(model)
    change = WeightChange(engine_of(model))
    change.apply([None])
    assert {name for name, value in bits(model).items() if value == before[name]} == {"empty"}
    with pytest.raises(RuntimeError, match="changed already"):
        change.apply([None])
    change.undo()
    change.undo()
    assert bits(model) == before
