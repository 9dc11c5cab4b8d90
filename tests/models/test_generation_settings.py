"""Settings of `generate` in a model's folder: what transformers reads is written again, also what it refuses
to write.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.models.families import save_model
from tests.workers.engine.builders import make_adapter_engine, make_engine
from verl.models.export_check import export_difference
from verl.models.files import check_files
from verl.models.loader import ModelPathError, NoTokenizer, build_causal_lm, load_config
from verl.models.saving import read_generation, save_language_model
from verl.workers.engine.state import write_adapters, write_hugging_face

SETTINGS: list[dict[str, Any]] = [
    {"do_sample": False, "temperature": 0.6, "top_p": 0.9, "top_k": 20},
    {"temperature": 0.9, "repetition_penalty": 1.05},
    {"pad_token_id": -1, "length_penalty": 2.0},
    {"do_sample": True, "temperature": 0.6, "min_p": 0.05},
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save_model("qwen3", tmp_path / "model")


def read(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "generation_config.json").read_text())


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda settings: ",".join(settings))
def test_exports_keep_the_settings_that_were_read(folder: Path, tmp_path: Path, settings: Any) -> None:
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 5], **settings}))
    write_hugging_face(make_engine(folder), tmp_path / "export", NoTokenizer())
    adapted = make_adapter_engine(folder, ("solver",))
    write_adapters(adapted, tmp_path / "adapters", NoTokenizer())
    with torch.device("meta"):
        built = build_causal_lm(str(folder), dtype=torch.float32, attn_implementation="eager")
    read_generation(built, str(folder))
    save_language_model(built, tmp_path / "built", {"model.norm.weight": torch.ones(128)})
    for written in ("export", "adapters/solver", "built"):
        kept = read(tmp_path / written)
        assert {name: kept[name] for name in settings} == settings, written
        assert sorted(kept["eos_token_id"]) == [2, 5], written
    assert read(tmp_path / "export").keys() == read(tmp_path / "built").keys()


ODD_FIELDS: list[dict[str, Any]] = [{"pad_token_id": -1}, {"output_attentions": True}]


@pytest.mark.parametrize("fields", ODD_FIELDS, ids=lambda fields: ",".join(fields))
def test_fields_that_transformers_refuses_to_write_end_no_run(
    folder: Path, tmp_path: Path, fields: dict[str, Any]
) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))
    config = load_config(str(folder))
    assert export_difference(config) < 1e-5
    engine = make_engine(folder)
    attention = engine.model.config._attn_implementation
    write_hugging_face(engine, tmp_path / "export", NoTokenizer())
    assert engine.model.config._attn_implementation == attention
    check_files(str(tmp_path / "export"))


CONTRADICTIONS: list[tuple[dict[str, Any], str]] = [
    ({"pad_token_id": 9000}, "Padding_idx must be within num_embeddings"),
    ({"layer_types": ["full_attention"]}, "must be equal to the number of `layer_types`"),
    ({"layer_types": ["strange"] * 3}, "entries must be in"),
    ({"hidden_act": "strange"}, "strange"),
]


@pytest.mark.parametrize(("fields", "cause"), CONTRADICTIONS)
def test_fields_that_contradict_each_other_are_one_line(
    folder: Path, fields: dict[str, Any], cause: str
) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))
    with pytest.raises(ModelPathError, match="cannot be loaded: ") as refused:
        check_files(str(folder))
    assert cause in str(refused.value) and "\n" not in str(refused.value)
