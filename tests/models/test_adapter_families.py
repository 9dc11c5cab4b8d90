"""Adapters on tiny models of many families: trained, written and read by plain PEFT they give equal log-probs, and all have an effect."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.models.families import FAMILIES, make_model
from verl.models.adapter_checks import EXPERTS, adapter_coverage, check_adapters_have_effect
from verl.models.adapter_layers import probe_logits
from verl.models.lora import (
    LoraSpec,
    LoraTargetError,
    adapter_parameters,
    add_adapters,
    lora_targets,
    save_adapter,
    select_adapter,
)

ROWS = 2
TOKENS = 12


def random_rows() -> torch.Tensor:
    return torch.randint(3, 500, (ROWS, TOKENS), generator=torch.Generator().manual_seed(3))


def log_probs(model: Any) -> torch.Tensor:
    return model(input_ids=random_rows(), use_cache=False).logits.float().log_softmax(-1)


def train_two_steps(model: Any, name: str) -> list[str]:
    """Return the names of parameters without a gradient in the second step, in which `lora_B` is no longer zero."""
    parameters = adapter_parameters(model, name)
    for _ in range(2):
        for value in parameters.values():
            value.grad = None
        log_probs(model)[..., :7].mean().backward()
        with torch.no_grad():
            for value in parameters.values():
                if value.grad is not None:
                    value.add_(value.grad.sign(), alpha=0.02)
    return [key for key, value in parameters.items() if value.grad is None or not bool(value.grad.any())]


@pytest.mark.parametrize("family", FAMILIES)
def test_plain_peft_gives_the_log_probs_of_a_trained_adapter_of_all_linear_layers(family: str, tmp_path: Path) -> None:
    from peft import PeftModel

    model = make_model(FAMILIES[family].config())
    plain = copy.deepcopy(model)
    with torch.no_grad():
        base = log_probs(model)
    add_adapters(model, {"other": LoraSpec(2, 2, "all-linear"), "a": LoraSpec(3, 6)}, "base", seed=0)
    select_adapter(model, "a")
    assert train_two_steps(model, "a") == []
    with torch.no_grad():
        trained = log_probs(model)
        assert (trained - base).abs().max() > 1e-2
        tensors = {key: value.detach().clone() for key, value in adapter_parameters(model, "a").items()}
        save_adapter(model, "a", tensors, tmp_path)
        read = PeftModel.from_pretrained(plain, tmp_path)
        assert (log_probs(read) - trained).abs().max() < 2e-5
