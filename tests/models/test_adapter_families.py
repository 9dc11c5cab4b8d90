"""Adapters on tiny models of many families: plain PEFT reads them with equal log-probs, and all have an
effect.
"""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.models.families import FAMILIES, make_model
from verl.models.adapter_checks import EXPERTS, adapter_coverage, adapter_report, check_adapters_have_effect
from verl.models.adapter_folder import read_adapter_shape
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
    """Return the names of parameters without a gradient in the second step, when `lora_B` is not zero."""
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
def test_plain_peft_gives_the_log_probs_of_a_trained_adapter(family: str, tmp_path: Path) -> None:
    from peft import PeftModel

    model = make_model(FAMILIES[family].config())
    plain = copy.deepcopy(model)
    with torch.no_grad():
        base = log_probs(model)
    add_adapters(model, {"a": LoraSpec(3, 6)}, "base", seed=0)
    select_adapter(model, "a")
    assert train_two_steps(model, "a") == []
    with torch.no_grad():
        trained = log_probs(model)
        assert (trained - base).abs().max() > 1e-2
        tensors = {key: value.detach().clone() for key, value in adapter_parameters(model, "a").items()}
        save_adapter(model, "a", tensors, tmp_path)
        read = PeftModel.from_pretrained(plain, tmp_path)
        assert (log_probs(read) - trained).abs().max() < 1e-5


# Shares of the layers' weights that all-linear covers, of families in which it does not cover everything.
SHARES = {"mixtral": 0.14, "gpt_oss": 0.14, "qwen3_moe": 0.33, "deepseek_v3": 0.37, "glm4_moe": 0.58}


def test_the_coverage_counts_every_matrix_of_the_layers_once() -> None:
    for family in FAMILIES:
        with torch.device("meta"):
            model = meta_model(family)
        coverage = adapter_coverage(model, LoraSpec(2, 2))
        total = coverage.share + sum(weights.share for weights in coverage.left_out.values())
        assert math.isclose(total, 1), family
        assert coverage.share == pytest.approx(SHARES.get(family, coverage.share), abs=0.005), family
        has_experts = any(value.ndim == 3 and ".experts." in name for name, value in model.named_parameters())
        assert (EXPERTS in coverage.left_out) == has_experts, family


def meta_model(family: str) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_config(FAMILIES[family].config(), attn_implementation="eager")


def test_a_coverage_says_what_is_left_out_and_why() -> None:
    with torch.device("meta"):
        model = meta_model("deepseek_v3")
    said = adapter_coverage(model, LoraSpec(2, 2, exclude_modules=["kv_b_proj"])).describe()
    assert said.startswith("adapts 3")
    assert "3-D expert parameters (63 %, model.layers.1.mlp.experts.gate_up_proj)" in said
    assert "layers that the keys do not choose (" in said
    with torch.device("meta"):
        dense = meta_model("llama")
    assert adapter_coverage(dense, LoraSpec(2, 2)).describe() == "adapts 100 % of the layers' weights"


# Families with shared experts, of most of which PEFT replaces the names of dense layers.
WITH_SHARED = (
    "deepseek_v2",
    "deepseek_v3",
    "glm4_moe",
    "glm4_moe_lite",
    "dots1",
    "ernie4_5_moe",
    "qwen2_moe",
    "qwen3_next",
)


@pytest.mark.parametrize("family", WITH_SHARED)
def test_names_of_dense_and_shared_layers_of_a_mixture_stay_theirs(family: str, tmp_path: Path) -> None:
    from peft import PeftModel

    model = make_model(FAMILIES[family].config())
    plain = copy.deepcopy(model)
    modules = [name for name, _ in model.named_modules()]
    shared = next(name for name in modules if name.endswith(("shared_expert", "shared_experts"))).split(".")[
        -1
    ]
    spec = LoraSpec(3, 6, [f"{shared}.down_proj"])
    expected = [name for name in modules if name.endswith(f"{shared}.down_proj")]
    assert list(lora_targets(model, spec)) == expected
    add_adapters(model, {"a": spec}, "base", seed=0)
    select_adapter(model, "a")
    assert train_two_steps(model, "a") == []
    tensors = {key: value.detach().clone() for key, value in adapter_parameters(model, "a").items()}
    assert {key.removeprefix("base_model.model.").rsplit(".lora_", 1)[0] for key in tensors} == set(expected)
    save_adapter(model, "a", tensors, tmp_path)
    again = read_adapter_shape(str(tmp_path))
    with torch.no_grad():
        read = PeftModel.from_pretrained(copy.deepcopy(plain), tmp_path)
        assert (log_probs(read) - log_probs(model)).abs().max() < 5e-5
        resumed = LoraSpec(3, 6, again["target_modules"], path=str(tmp_path))
        assert list(lora_targets(plain, resumed)) == expected
        add_adapters(plain, {"b": resumed}, "base", seed=1)
        select_adapter(plain, "b")
        assert (log_probs(plain) - log_probs(model)).abs().max() < 1e-5


@pytest.mark.parametrize(
    ("family", "targets", "cause"),
    [
        ("phimoe", ["router"], "that return a tuple instead of a tensor"),
        ("llama4_text", ["q_proj", "router"], "that return a tuple instead of a tensor"),
        ("gemma3n_text", ".*correction_coefs", "whose weight is used without calling them"),
        ("nemotron_h", ["out_proj"], "which PEFT refuses in a model of type nemotron_h"),
        ("qwen3_moe", ["gate_up_proj"], "mlp.experts.gate_up_proj is a parameter of 3 dimensions"),
        ("qwen3_moe", ["mlp.gate"], "is a Qwen3MoeTopKRouter; expected linear layers"),
        ("gpt2", ["q_proj"], "no layer 'q_proj'; its linear layers are c_attn, c_fc, c_proj"),
    ],
)
def test_a_layer_without_an_adapter_is_refused_with_the_cause(family: str, targets: Any, cause: str) -> None:
    with torch.device("meta"):
        model = meta_model(family)
    with pytest.raises(LoraTargetError, match=r"^target_modules=") as raised:
        lora_targets(model, LoraSpec(2, 2, targets))
    assert cause in str(raised.value)
    assert "\n" not in str(raised.value)


EFFECT_FAMILIES = ("qwen3", "gpt2", "opt", "qwen2_moe", "falcon_h1", "gemma3n_text", "zamba2")


@pytest.mark.parametrize("family", EFFECT_FAMILIES)
def test_every_layer_of_an_adapter_has_a_gradient_and_an_effect(family: str) -> None:
    assert check_adapters_have_effect(make_model(FAMILIES[family].config()), LoraSpec(2, 2)) == []


def test_a_layer_without_an_effect_is_a_problem() -> None:
    model = make_model(FAMILIES["llama"].config())
    layer = model.model.layers[1].mlp
    forward = layer.forward
    layer.forward = lambda hidden: 0 * forward(hidden)
    problems = check_adapters_have_effect(model, LoraSpec(2, 2, ["layers.1.mlp.down_proj", "q_proj"]))
    name = "base_model.model.model.layers.1.mlp.down_proj.lora_B.weight"
    assert problems == [f"{name} gets no gradient", f"{name} has no effect on the logits"]


def test_a_report_has_the_problems_of_all_adapters_and_the_coverage_of_the_others() -> None:
    with torch.device("meta"):
        model = meta_model("qwen3_moe")
    specs = {"a": LoraSpec(2, 2), "b": LoraSpec(2, 2, ["q_prj"]), "c": LoraSpec(2, 2, ["gate_up_proj"])}
    report = adapter_report(model, specs)
    assert [problem.split(":")[0] for problem in report.problems] == ["adapter 'b'", "adapter 'c'"]
    assert report.coverage["a"].share == pytest.approx(0.33, abs=0.005)
