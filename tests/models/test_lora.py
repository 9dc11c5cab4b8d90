"""Adapters as PEFT makes them: which layers get one, how they start, and that plain PEFT reads what is
written.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.conftest import save_peft_adapter
from verl.models.adapter_folder import AdapterFolderError, read_adapter_shape
from verl.models.lora import (
    LoraSpec,
    LoraTargetError,
    adapter_parameters,
    add_adapters,
    lora_size,
    lora_targets,
    save_adapter,
    select_adapter,
)

MLP = {f"model.layers.{i}.mlp.{end}" for i in range(2) for end in ("gate_proj", "up_proj", "down_proj")}
ATTENTION = {
    f"model.layers.{i}.self_attn.{end}" for i in range(2) for end in ("q_proj", "k_proj", "v_proj", "o_proj")
}


@pytest.fixture
def model(tiny_model_dir: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(tiny_model_dir, dtype=torch.float32)


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (LoraSpec(2, 2), MLP | ATTENTION),
        (LoraSpec(2, 2, exclude_modules=["q_proj", "k_proj", "v_proj", "o_proj"]), MLP),
        (LoraSpec(2, 2, ["mlp.up_proj", "model.layers.0.self_attn.q_proj"]), None),
        (LoraSpec(2, 2, r".*\.mlp\..*_proj"), MLP),
        (LoraSpec(2, 2, ["lm_head"]), {"lm_head"}),
    ],
)
def test_the_layers_of_an_adapter_are_those_that_peft_chooses(
    model: Any, spec: LoraSpec, expected: set[str] | None
) -> None:
    chosen = lora_targets(model, spec)
    assert expected is None or set(chosen) == expected
    add_adapters(model, {"a": spec}, "base", seed=0)
    layers = {
        name.removeprefix("base_model.model.").rsplit(".lora_", 1)[0]
        for name in adapter_parameters(model, "a")
    }
    assert layers == set(chosen)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (
            LoraSpec(2, 2, ["q_proj", "q_prj"]),
            r"target_modules=\['q_proj', 'q_prj'\]: the model has no layer 'q_prj'.* down_proj, gate_proj",
        ),
        (LoraSpec(2, 2, ["embed_tokens"]), "'model.embed_tokens' is a Embedding; expected linear layers"),
        (LoraSpec(2, 2, ["q_proj"], ["q_proj"]), r"exclude_modules=\['q_proj'\] leaves no layer"),
        (LoraSpec(2, 2, "q_proj("), "invalid regular expression"),
    ],
)
def test_an_adapter_that_does_not_fit_is_refused(model: Any, spec: LoraSpec, message: str) -> None:
    with pytest.raises(LoraTargetError, match=message):
        add_adapters(model, {"a": spec}, "base", seed=0)


def test_an_adapter_begins_as_its_base_and_does_not_depend_on_other_adapters(tiny_model_dir: Path) -> None:
    def made(specs: dict[str, LoraSpec], seed: int = 0) -> Any:
        return add_adapters(
            AutoModelForCausalLM.from_pretrained(tiny_model_dir, dtype=torch.bfloat16), specs, "base", seed
        )

    spec = LoraSpec(3, 6)
    torch.manual_seed(5)
    noise = torch.rand(1)
    torch.manual_seed(5)
    alone, beside = made({"train": spec}), made({"other": LoraSpec(1, 1, ["q_proj"]), "train": spec})
    assert torch.equal(noise, torch.rand(1)), "the caller's random state stays"
    first, same, other = (
        adapter_parameters(m, n) for m, n in ((alone, "train"), (beside, "train"), (made({"x": spec}), "x"))
    )
    assert all(torch.equal(first[name], same[name]) for name in first)
    assert any(not torch.equal(first[name], other[name]) for name in first), (
        "adapters of one rank start differently"
    )
    again = adapter_parameters(made({"train": spec}, seed=1), "train")
    assert any(not torch.equal(first[name], again[name]) for name in first)
    assert all(p.dtype == torch.float32 and p.requires_grad for p in first.values())
    assert not any(value.any() for name, value in first.items() if "lora_B" in name)
    assert sum(p.numel() for p in first.values()) == lora_size(made({}), spec)
    ids = torch.arange(5)[None]
    with torch.no_grad():
        base = beside(ids).logits
        select_adapter(beside, "train")
        assert torch.equal(beside(ids).logits, base)


def test_plain_peft_reads_what_was_saved(model: Any, tiny_model_dir: Path, tmp_path: Path) -> None:
    from peft import PeftModel

    specs = {"a": LoraSpec(2, 8), "b": LoraSpec(4, 4, ["q_proj", "down_proj"])}
    add_adapters(model, specs, str(tiny_model_dir), seed=0)
    ids = torch.arange(7)[None]
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        base = model(ids).logits
        for name in specs:
            for p in adapter_parameters(model, name).values():
                p.copy_(0.3 * torch.randn(p.shape, generator=generator))
            save_adapter(
                model,
                name,
                {key: p.detach().clone() for key, p in adapter_parameters(model, name).items()},
                tmp_path / name,
            )
        for name, spec in specs.items():
            select_adapter(model, name)
            plain = PeftModel.from_pretrained(
                AutoModelForCausalLM.from_pretrained(tiny_model_dir, dtype=torch.float32), tmp_path / name
            )
            expected = model(ids).logits
            assert (plain(ids).logits - expected).abs().max() < 1e-6
            assert (expected - base).abs().max() > 1e-2
            config = json.loads((tmp_path / name / "adapter_config.json").read_text())
            assert (config["r"], config["lora_alpha"], config["base_model_name_or_path"]) == (
                spec.rank,
                spec.alpha,
                str(tiny_model_dir),
            )
        select_adapter(model, None)
        assert torch.equal(model(ids).logits, base)


def from_folder(folder: Path, **changes: Any) -> LoraSpec:
    shape = read_adapter_shape(str(folder)) | changes
    return LoraSpec(
        shape["lora_rank"],
        shape["lora_alpha"],
        shape["target_modules"],
        shape["exclude_modules"],
        str(folder),
    )


def test_an_adapter_starts_from_that_of_a_folder_beside_new_ones(
    model: Any, tiny_model_dir: Path, tmp_path: Path
) -> None:
    from peft import PeftModel

    folder = save_peft_adapter(tiny_model_dir, tmp_path / "given", lora_dropout=0.5)
    ids = torch.arange(7)[None]
    add_adapters(model, {"new": LoraSpec(2, 8), "given": from_folder(folder)}, str(tiny_model_dir), seed=0)
    plain = PeftModel.from_pretrained(
        AutoModelForCausalLM.from_pretrained(tiny_model_dir, dtype=torch.float32), folder
    )
    with torch.no_grad():
        base = model(ids).logits
        select_adapter(model, "given")
        assert (model(ids).logits - plain(ids).logits).abs().max() < 1e-6
        assert (model(ids).logits - base).abs().max() > 1e-2
        select_adapter(model, "new")
        assert torch.equal(model(ids).logits, base)
    assert all(
        p.requires_grad and p.dtype == torch.float32 for p in adapter_parameters(model, "given").values()
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"use_dora": True}, "use_dora=True, which adapters here do not support"),
        ({"use_rslora": True}, "use_rslora=True"),
        ({"rank_pattern": {"q_proj": 2}}, "rank_pattern"),
        ({"bias": "all"}, "bias='all'"),
        ({"init_lora_weights": "olora"}, "init_lora_weights='olora'"),
        ({"peft_type": "IA3"}, "peft_type='IA3'; expected 'LORA'"),
        ({"r": 0}, "r=0; expected a positive integer"),
        ({"lora_alpha": None}, "lora_alpha=None"),
        ({"target_modules": None}, "target_modules=None; expected layer names"),
        (
            {"target_parameters": ["experts.gate_up_proj"]},
            r"target_parameters=\['experts.gate_up_proj'\] beside",
        ),
        (
            {"target_modules": "q_.*", "target_parameters": ["down_proj.weight"]},
            "expected a list of weights of linear layers",
        ),
        (None, "cannot be read"),
        ("adapter_config.json", "has no adapter_config.json"),
        ("adapter_model.safetensors", "neither adapter_model.safetensors nor adapter_model.bin"),
    ],
)
def test_a_folder_without_a_plain_lora_is_refused(
    tmp_path: Path, changes: dict[str, Any] | str | None, message: str
) -> None:
    good = {
        "peft_type": "LORA",
        "r": 2,
        "lora_alpha": 4,
        "target_modules": ["v_proj", "q_proj"],
        "bias": "none",
        "use_dora": False,
    }
    text = json.dumps(good | (changes if isinstance(changes, dict) else {})) if changes is not None else "{"
    (tmp_path / "adapter_config.json").write_text(text)
    (tmp_path / "adapter_model.safetensors").touch()
    if isinstance(changes, str):
        (tmp_path / changes).unlink()
    with pytest.raises(AdapterFolderError, match=message):
        read_adapter_shape(str(tmp_path))


def test_weights_that_do_not_fit_are_refused(model: Any, tiny_model_dir: Path, tmp_path: Path) -> None:
    folder = save_peft_adapter(tiny_model_dir, tmp_path / "given")
    for changes, message in (
        ({"lora_rank": 2}, r"has the shape \(3, 64\) there, expected \(2, 64\)"),
        ({"target_modules": ["q_proj"]}, "no such"),
    ):
        with pytest.raises(LoraTargetError, match=message):
            add_adapters(model, {"a": from_folder(folder, **changes)}, "base", seed=0)
    (folder / "adapter_model.safetensors").write_bytes(b"torn")
    with pytest.raises(LoraTargetError, match="weights cannot be read"):
        add_adapters(model, {"a": from_folder(folder)}, "base", seed=0)
