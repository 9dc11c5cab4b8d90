import json
import shutil
import sys
from pathlib import Path

import pytest
import torch

from verl.models.loader import (
    ModelPathError,
    check_model_path,
    load_causal_lm,
    load_tokenizer,
    resolve_attention,
    resolve_dtype,
    stop_token_ids,
)


@pytest.mark.parametrize("path", ["/no/such/model", "./nowhere", "a/b/c", "", None])
def test_a_path_that_does_not_exist_is_refused(path: str | None) -> None:
    with pytest.raises(ModelPathError, match=r"does not exist|no model path"):
        check_model_path(path)


def test_a_relative_path_that_could_be_a_hub_id_is_told_apart_when_it_is_loaded() -> None:
    with pytest.raises(ModelPathError, match="'models/nowhere' is neither an existing folder nor a model of the hub") as refused:
        load_tokenizer("models/nowhere")
    assert "tokenizer_path" not in str(refused.value)


def test_a_folder_without_a_model_and_a_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelPathError, match=r"no config\.json"):
        check_model_path(str(tmp_path))
    (tmp_path / "file").touch()
    with pytest.raises(ModelPathError, match="is a file"):
        check_model_path(str(tmp_path / "file"))


def test_hub_ids_and_model_folders_pass(tiny_model_dir: Path) -> None:
    assert check_model_path("Qwen/Qwen3-4B") == "Qwen/Qwen3-4B"
    assert check_model_path(str(tiny_model_dir)) == str(tiny_model_dir)


def test_the_path_is_checked_before_transformers_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    """That the module itself does not import it: tests/house/test_imports.py."""
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ModelPathError, match="/no/such"):
        load_causal_lm("/no/such", dtype=torch.float32, attn_implementation="sdpa")


def test_a_loaded_model_has_its_rotary_frequencies(tiny_model_dir: Path) -> None:
    model = load_causal_lm(str(tiny_model_dir), dtype=torch.float32, attn_implementation="sdpa")
    frequencies = model.model.rotary_emb.inv_freq
    assert not frequencies.is_meta and frequencies[0] == 1.0 and not model.training


def test_the_tokenizer_has_a_pad_token(tiny_model_dir: Path, tmp_path: Path) -> None:
    assert load_tokenizer(str(tiny_model_dir)).pad_token_id is not None
    (tmp_path / "config.json").write_text('{"model_type": "qwen3"}')
    with pytest.raises(ModelPathError, match="tokenizer"):
        load_tokenizer(str(tmp_path))
    listed = {"tokenizer_class": "Qwen2TokenizerFast", "added_tokens_decoder": {"0": {"content": "<|eot_id|>", "special": True}}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(listed))
    with pytest.raises(ModelPathError, match="has no tokenizer files"):
        load_tokenizer(str(tmp_path))


def test_names_of_dtypes_and_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    assert resolve_dtype("auto", "cpu") == torch.float32 and resolve_dtype("auto", "cuda") == torch.bfloat16
    monkeypatch.setattr("transformers.utils.is_flash_attn_2_available", lambda: True)
    found = [resolve_attention("auto", *where) for where in (("cpu", torch.bfloat16), ("cuda", torch.float32), ("cuda", torch.bfloat16))]
    assert found == ["sdpa", "sdpa", "flash_attention_2"], "flash-attn computes in 16 bits"
    with pytest.raises(ValueError, match=r"'fp8'.*bf16"):
        resolve_dtype("fp8", "cpu")
    with pytest.raises(ValueError, match="'flash'"):
        resolve_attention("flash", "cpu", torch.float32)


def test_a_reply_ends_where_the_model_says_beside_the_end_of_a_text(tiny_model_dir: Path, tiny_llama_dir: Path) -> None:
    llama, qwen = load_tokenizer(str(tiny_llama_dir)), load_tokenizer(str(tiny_model_dir))
    assert stop_token_ids(str(tiny_llama_dir), llama) == tuple(llama.convert_tokens_to_ids(["<|end_of_text|>", "<|eot_id|>"]))
    assert stop_token_ids(str(tiny_model_dir), qwen) == (qwen.convert_tokens_to_ids("<|im_end|>"),)
    assert stop_token_ids("no/such-model", llama) == (llama.eos_token_id, llama.convert_tokens_to_ids("<|eot_id|>")), "by the template"
    llama.chat_template = None
    assert stop_token_ids("no/such-model", llama) == (llama.eos_token_id,)


def test_stop_tokens_are_found_under_any_name_of_the_folder_and_an_unreadable_file_is_an_error(
    tiny_llama_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    llama = load_tokenizer(str(tiny_llama_dir))
    monkeypatch.setenv("HOME", str(tiny_llama_dir.parent))
    ends = stop_token_ids(f"~/{tiny_llama_dir.name}", llama)
    assert ends == stop_token_ids(str(tiny_llama_dir), llama) and len(ends) == 2
    broken = tmp_path / "broken"
    shutil.copytree(tiny_llama_dir, broken)
    (broken / "generation_config.json").write_text("{")
    with pytest.raises(ModelPathError, match=r"broken/generation_config\.json cannot be read"):
        stop_token_ids(str(broken), llama)
    (broken / "generation_config.json").unlink()
    assert stop_token_ids(str(broken), llama) == ends, "those of the chat template"
