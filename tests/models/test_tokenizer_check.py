"""Texts come back from a tokenizer's tokens, or the tokenizer is loaded in another way, or refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agent_system.testing import make_tokenizer
from verl.models.loader import ModelPathError, load_tokenizer
from verl.models.tokenizer_check import PLAIN, read_back


def byte_level_folder(folder: Path, name: str) -> Path:
    make_tokenizer(["Hello world, don't stop"]).backend_tokenizer.save(str(folder / "tokenizer.json"))
    names = {"tokenizer_class": name, "bos_token": "<|endoftext|>", "eos_token": "<|im_end|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(names))
    (folder / "config.json").write_text(
        json.dumps({"model_type": "llama", "architectures": ["LlamaForCausalLM"]})
    )
    return folder


def test_a_byte_level_vocabulary_under_the_name_of_another_class_keeps_its_blanks(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(str(byte_level_folder(tmp_path, "LlamaTokenizerFast")))
    assert read_back(tokenizer, PLAIN) == PLAIN and tokenizer.eos_token == "<|im_end|>"


def test_a_tokenizer_that_loses_blanks_however_it_is_loaded_is_refused_in_one_line(tmp_path: Path) -> None:
    folder = byte_level_folder(tmp_path, "PreTrainedTokenizerFast")
    parts = json.loads((folder / "tokenizer.json").read_text())
    parts["normalizer"] = {"type": "Replace", "pattern": {"String": " "}, "content": ""}
    (folder / "tokenizer.json").write_text(json.dumps(parts))
    with pytest.raises(
        ModelPathError, match=r"loses parts of texts: .* set actor_rollout_ref.model.tokenizer_path"
    ) as caught:
        load_tokenizer(str(folder))
    assert "\n" not in str(caught.value)
