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
from verl.models.loader import NoTokenizer, build_causal_lm
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
