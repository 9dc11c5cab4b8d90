import json
import shutil
import sys
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file

from verl.models.files import check_files
from verl.models.loader import (
    ModelPathError,
    check_model_path,
    is_flash_attention_usable,
    load_causal_lm,
    load_config,
    load_tokenizer,
    stop_token_ids,
)
from verl.models.saving import save_turn_ends


@pytest.mark.parametrize("path", ["/no/such/model", "./nowhere", "a/b/c", "", None])
def test_a_path_that_does_not_exist_is_refused(path: str | None) -> None:
    with pytest.raises(ModelPathError, match=r"does not exist|no model path"):
        check_model_path(path)


def test_a_relative_path_that_could_be_a_hub_id_is_told_apart_when_it_is_loaded() -> None:
    with pytest.raises(
        ModelPathError, match="'models/nowhere' is neither an existing folder nor a model of the hub"
    ) as refused:
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


def test_a_configuration_shares_nothing_with_the_next_one_and_a_file_that_changed_is_read_again(
    tiny_model_dir: Path, tmp_path: Path
) -> None:
    shutil.copytree(tiny_model_dir, folder := tmp_path / "model")
    first, layers = load_config(str(folder)), load_config(str(folder)).layer_types
    first.num_hidden_layers = 7
    first.layer_types.append("other")
    again = load_config(str(folder))
    assert (again.num_hidden_layers, again.layer_types) == (2, layers)
    file = folder / "config.json"
    file.write_text(file.read_text().replace('"num_attention_heads": 4', '"num_attention_heads": 2'))
    assert load_config(str(folder)).num_attention_heads == 2
    assert load_config(str(tiny_model_dir)).num_attention_heads == 4
    file.write_text("{")
    with pytest.raises(ModelPathError, match="cannot be loaded"):
        load_config(str(folder))


def test_a_loaded_model_has_its_rotary_frequencies(tiny_model_dir: Path) -> None:
    model = load_causal_lm(str(tiny_model_dir), dtype=torch.float32, attn_implementation="sdpa")
    frequencies = model.model.rotary_emb.inv_freq
    assert not frequencies.is_meta and frequencies[0] == 1.0 and not model.training


def test_the_tokenizer_has_a_pad_token(tiny_model_dir: Path, tmp_path: Path) -> None:
    assert load_tokenizer(str(tiny_model_dir)).pad_token_id is not None
    (tmp_path / "config.json").write_text('{"model_type": "qwen3"}')
    with pytest.raises(ModelPathError, match="tokenizer"):
        load_tokenizer(str(tmp_path))
    listed = {
        "tokenizer_class": "Qwen2TokenizerFast",
        "added_tokens_decoder": {"0": {"content": "<|eot_id|>", "special": True}},
    }
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(listed))
    with pytest.raises(ModelPathError, match="has no tokenizer files"):
        load_tokenizer(str(tmp_path))


def test_flash_attention_is_used_on_a_gpu_in_16_bits_if_it_is_installed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    places = [("cpu", torch.bfloat16), ("cuda", torch.float32), ("cuda", torch.bfloat16)]
    monkeypatch.setattr("transformers.utils.is_flash_attn_2_available", lambda: True)
    assert [is_flash_attention_usable(*place) for place in places] == [False, False, True]
    monkeypatch.setattr("transformers.utils.is_flash_attn_2_available", lambda: False)
    assert not any(is_flash_attention_usable(*place) for place in places)


def edit_config(folder: Path, **changes: object) -> None:
    """Change keys of a model's configuration."""
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def damage(folder: Path, how: str) -> None:
    """Make a model folder wrong in one way."""
    weights = folder / "model.safetensors"
    tensors = load_file(weights)
    if how == "other framework":
        weights.rename(folder / "tf_model.h5")
    elif how == "no weights":
        weights.unlink()
    elif how == "missing shard":
        index = {"metadata": {}, "weight_map": dict.fromkeys(tensors, "model-00001-of-00002.safetensors")}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
        weights.unlink()
    elif how == "cut":
        weights.write_bytes(weights.read_bytes()[:-100])
    elif how == "other shape":
        edit_config(folder, intermediate_size=200)
    elif how == "more layers":
        edit_config(folder, num_hidden_layers=4, layer_types=["full_attention"] * 4)
    elif how == "unknown type":
        edit_config(folder, model_type="nowhere", architectures=["NowhereForCausalLM"])
    elif how == "image model":
        edit_config(folder, model_type="qwen3_vl", architectures=["Qwen3VLForConditionalGeneration"])
    elif how == "own code":
        edit_config(
            folder,
            model_type="nowhere",
            auto_map={"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Model"},
        )
    elif how == "not finite":
        next(iter(tensors.values()))[0] = float("nan")
        save_file(tensors, weights, metadata={"format": "pt"})


@pytest.mark.parametrize(
    ("how", "match"),
    {
        "other framework": r"weights of TensorFlow \(tf_model.h5\)",
        "no weights": "has no weights; expected model.safetensors",
        "missing shard": "model-00001-of-00002.safetensors",
        "cut": "cannot be loaded: .*file not fully covered",
        "other shape": r"contradict its config.json in \d+ tensors: .*the configuration asks for",
        "more layers": r"lack \d+ tensors that its config.json asks for, such as model.layers.2",
        "unknown type": "nowhere",
        "image model": "'qwen3_vl', which transformers does not load as a causal language model; choose a model",
        "own code": "trust_remote_code",
        "not finite": "holds numbers that are not finite",
    }.items(),
)
def test_a_damaged_folder_is_refused_by_one_line(
    how: str, match: str, tiny_model_dir: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tiny_model_dir, folder)
    damage(folder, how)
    with pytest.raises(ModelPathError, match=match) as refused:
        check_files(str(folder))
        load_causal_lm(str(folder), dtype=torch.float32, attn_implementation="sdpa")
    assert "\n" not in str(refused.value)


def test_a_reply_ends_where_the_model_says_beside_the_end_of_a_text(
    tiny_model_dir: Path, tiny_llama_dir: Path
) -> None:
    llama, qwen = load_tokenizer(str(tiny_llama_dir)), load_tokenizer(str(tiny_model_dir))
    assert stop_token_ids(str(tiny_llama_dir), llama) == tuple(
        llama.convert_tokens_to_ids(["<|end_of_text|>", "<|eot_id|>"])
    )
    assert stop_token_ids(str(tiny_model_dir), qwen) == (qwen.convert_tokens_to_ids("<|im_end|>"),)
    assert stop_token_ids("no/such-model", llama) == (
        llama.eos_token_id,
        llama.convert_tokens_to_ids("<|eot_id|>"),
    ), "by the template"
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


def test_the_folder_of_an_adapter_says_where_its_turns_end(tiny_model_dir: Path, tmp_path: Path) -> None:
    tokenizer = load_tokenizer(str(tiny_model_dir))
    tokenizer.eos_token = "<|endoftext|>"
    model = load_causal_lm(str(tiny_model_dir), dtype=torch.float32, attn_implementation="eager")
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    save_turn_ends(get_peft_model(model, LoraConfig(target_modules=["q_proj"])), tokenizer, tmp_path)
    saved = json.loads((tmp_path / "generation_config.json").read_text(encoding="utf-8"))
    assert saved["eos_token_id"] == tokenizer.convert_tokens_to_ids(["<|endoftext|>", "<|im_end|>"])
