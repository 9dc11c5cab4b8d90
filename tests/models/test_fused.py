"""Fused norms and projections compute what the model's own modules compute, and change nothing else of it."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model

from tests.models.families import FAMILIES, make_model
from verl.models.fused import fuse_norms, fuse_projections
from verl.workers.rollout.weights import WeightLoader

# The norms that are fused, and the products of each: of all kinds of layers.
FUSED = {
    "qwen3": (13, 6),
    "llama-tied": (7, 6),
    "qwen2": (7, 6),
    "phi3-longrope": (7, 0),
    "gemma2": (0, 8),
    "opt": (0, 3),
    "bloom": (0, 0),
}


def outputs(model: Any) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Logits and gradients of all parameters."""
    ids = torch.randint(3, 576, (2, 9), generator=torch.Generator().manual_seed(0))
    logits = model(input_ids=ids, use_cache=False).logits
    model.zero_grad()
    logits.float().log_softmax(-1)[..., 5].sum().backward()
    return logits.detach(), {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("name", FUSED)
def test_a_fused_model_equals_the_plain_one_in_logits_gradients_names_and_bytes(name: str) -> None:
    plain = make_model(FAMILIES[name].config()).float()
    fused = copy.deepcopy(plain)
    assert (fuse_norms(fused), fuse_projections(copy.deepcopy(fused))) == FUSED[name]
    expected, gradients = outputs(plain)
    for model in (fused, copy.deepcopy(fused)):
        logits, actual = outputs(model)
        torch.testing.assert_close(logits, expected, rtol=1e-5, atol=1e-5 * float(expected.abs().max()))
        assert actual.keys() == gradients.keys()
        for key, gradient in gradients.items():
            assert float((actual[key] - gradient).abs().max()) <= 1e-5 * float(gradient.abs().max()) + 1e-9
    fuse_projections(fused)
    with torch.inference_mode():
        ids = torch.arange(3, 19).view(2, 8)
        served = fused(input_ids=ids, use_cache=False).logits
        own = plain(input_ids=ids, use_cache=False).logits
    torch.testing.assert_close(served, own, rtol=1e-5, atol=1e-5 * float(own.abs().max()))
    assert fused.state_dict().keys() == plain.state_dict().keys()
    assert all(torch.equal(value, plain.state_dict()[key]) for key, value in fused.state_dict().items())


def test_new_weights_reach_the_products_and_a_copy_of_the_model_has_its_own() -> None:
    model = make_model(FAMILIES["llama-tied"].config())
    other = make_model(FAMILIES["llama-tied"].config())
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(1.5)
    fuse_norms(model)
    fuse_projections(model)
    twin = copy.deepcopy(model)
    WeightLoader(model).load(dict(other.named_parameters()), final=True)
    ids = torch.arange(3, 12)[None]
    with torch.inference_mode():
        logits = [network(input_ids=ids, use_cache=False).logits for network in (model, other, twin)]
    torch.testing.assert_close(logits[0], logits[1], rtol=1e-5, atol=1e-5 * float(logits[1].abs().max()))
    assert not torch.allclose(logits[2], logits[1], rtol=1e-2)


def test_files_of_a_fused_model_are_those_of_the_plain_one(tmp_path: Any) -> None:
    model = make_model(FAMILIES["llama-tied"].config())
    model.save_pretrained(tmp_path / "plain")
    fuse_norms(model)
    fuse_projections(model)
    model.save_pretrained(tmp_path / "fused")
    plain, fused = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("plain", "fused"))
    assert plain == fused


class Apart(torch.nn.Module):
    """A module whose projections have different inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.gate_proj = torch.nn.Linear(8, 4)
        self.up_proj = torch.nn.Linear(8, 4)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        return self.gate_proj(states) * self.up_proj(2 * states)


class Scaled(torch.nn.Module):
    """A norm that is none of torch's: its weight is an offset."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(8))
        self.eps = 1e-6

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.rms_norm(states, (8,), 1 + self.weight, self.eps)


@torch.inference_mode()
def test_projections_of_different_inputs_compute_their_own_products() -> None:
    plain = Apart()
    fused = copy.deepcopy(plain)
    assert fuse_projections(fused) == 1
    for _ in range(3):
        states = torch.randn(5, 8)
        torch.testing.assert_close(fused(states), plain(states))


def test_other_norms_tied_and_wrapped_and_changed_layers_are_left_alone() -> None:
    assert fuse_norms(Scaled()) == 0
    tied = Apart()
    tied.up_proj.weight = tied.gate_proj.weight
    uneven = Apart()
    uneven.up_proj.bias = None
    half = Apart()
    half.up_proj.half()
    assert [fuse_projections(module) for module in (tied, uneven, half)] == [0, 0, 0]
    model = get_peft_model(
        make_model(FAMILIES["llama"].config()), LoraConfig(r=2, target_modules=["q_proj", "up_proj"])
    )
    assert fuse_projections(model) == 0


class SettledNorm(torch.nn.Module):
    """An RMS norm of which a flag and a number beyond epsilons change the output."""

    def __init__(self, plus_one: bool = False, scale: float = 1.0) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.rand(8))
        self.eps = 1e-6
        self.plus_one = plus_one
        self.scale = scale

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        normed = states * torch.rsqrt(states.square().mean(-1, keepdim=True) + self.eps)
        return normed * (self.weight + self.plus_one) * self.scale


def test_norms_of_one_class_with_other_settings_are_tried_each() -> None:
    model = torch.nn.Sequential(
        SettledNorm(), SettledNorm(plus_one=True), SettledNorm(scale=0.5), SettledNorm()
    )
    states = torch.randn(3, 8)
    expected = [norm(states) for norm in model]
    assert fuse_norms(model) == 2
    for norm, output in zip(model, expected, strict=True):
        torch.testing.assert_close(norm(states), output)
