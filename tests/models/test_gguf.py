"""A GGUF file is a model path: the same numbers and tokens as its model, or one line that says why not."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
from transformers import AutoModelForCausalLM

from verl.models import gguf
from verl.models.files import check_files
from verl.models.loader import ModelPathError, load_tokenizer, stop_token_ids
from verl.models.path import absolute_model_path

pytest.importorskip("gguf", reason="needs the extra gguf")

from gguf import GGMLQuantizationType, dequantize, quantize

from tests.models.gguf_files import MODELS, small_model, write_gguf

IDS = torch.tensor([[5, 17, 250, 31, 2, 99, 7]])


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("VERL_MAS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "gguf"


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("architecture", MODELS)
def test_a_file_gives_the_numbers_of_its_model_and_stays_a_normal_folder(
    architecture: str, tied: bool, tmp_path: Path
) -> None:
    model = small_model(architecture, tie_word_embeddings=tied)
    folder = absolute_model_path(str(write_gguf(tmp_path / "m.gguf", model, architecture=architecture)))
    check_files(folder)
    loaded = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        assert torch.allclose(loaded(IDS).logits, model(IDS).logits, atol=1e-5)
    assert loaded.config.architectures == [type(model).__name__]
    loaded.save_pretrained(tmp_path / "again")


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_1", "BF16"])
def test_blocks_are_dequantized_and_written_in_shards(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gguf, "SHARD_BYTES", 100_000)
    model, quantized = small_model("qwen3"), GGMLQuantizationType[kind]
    folder = Path(
        absolute_model_path(str(write_gguf(tmp_path / "m.gguf", model, architecture="qwen3", kind=quantized)))
    )
    assert len(list(folder.glob("model-0000*-of-0000*.safetensors"))) > 1
    check_files(str(folder))
    weights = (
        AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).model.layers[1].mlp.up_proj.weight
    )
    blocks = quantize(model.model.layers[1].mlp.up_proj.weight.detach().numpy(), quantized)
    assert torch.equal(weights.detach(), torch.from_numpy(dequantize(blocks, quantized).copy()))


@pytest.mark.parametrize("architecture", MODELS)
def test_the_tokenizer_has_its_own_ends_tokens_and_template(architecture: str, tmp_path: Path) -> None:
    folder = absolute_model_path(
        str(write_gguf(tmp_path / "m.gguf", small_model(architecture), architecture=architecture))
    )
    tokenizer = load_tokenizer(folder)
    assert (tokenizer.bos_token, tokenizer.eos_token, tokenizer.pad_token) == (
        "<|im_start|>",
        "<|im_end|>",
        "<|endoftext|>",
    )
    assert stop_token_ids(folder, tokenizer) == (2,)
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": "12 apples"}], tokenize=False, add_generation_prompt=True
    )
    assert text.endswith("12 apples<|im_end|>\n<|im_start|>assistant\n")
    assert tokenizer(text)["input_ids"][0] == 1


def test_numbers_are_cut_by_the_rule_that_the_file_names(tmp_path: Path) -> None:
    pieces = {}
    for rule in ("smollm", "llama-bpe", "gpt-2"):
        file = write_gguf(tmp_path / f"{rule}.gguf", small_model(), fields={"tokenizer.ggml.pre": rule})
        cut = load_tokenizer(absolute_model_path(str(file))).backend_tokenizer.pre_tokenizer.pre_tokenize_str(
            "x12345"
        )
        pieces[rule] = [piece for piece, _ in cut]
    assert pieces == {
        "smollm": ["x", "1", "2", "3", "4", "5"],
        "llama-bpe": ["x", "123", "45"],
        "gpt-2": ["x", "12345"],
    }


@pytest.mark.parametrize(("rule", "whole"), [("llama-bpe", True), ("smollm", False), ("gpt-2", False)])
def test_a_word_that_no_merges_reach_is_a_token_where_the_vocabulary_says_so(
    rule: str, whole: bool, tmp_path: Path
) -> None:
    """As `Cửa Việt` in Llama 3: its last word is one token there, and four by merges."""
    fields = {"tokenizer.ggml.pre": rule}
    file = write_gguf(tmp_path / "m.gguf", small_model(), fields=fields, last_token="Ġzebras")
    tokenizer = load_tokenizer(absolute_model_path(str(file)))
    tokens = tokenizer.convert_ids_to_tokens(tokenizer.encode("12 zebras", add_special_tokens=False))
    assert (tokens[-1] == "Ġzebras") is whole and tokenizer.decode(
        tokenizer.encode("12 zebras")
    ) == "12 zebras"


def test_a_folder_that_holds_one_file_is_that_model_and_it_is_converted_once(
    tmp_path: Path, cache: Path
) -> None:
    (tmp_path / "f").mkdir()
    file = write_gguf(tmp_path / "f" / "m.gguf", small_model())
    folders: list[str] = []
    threads = [
        threading.Thread(target=lambda: folders.append(absolute_model_path(str(tmp_path / "f"))))
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(folders) == {absolute_model_path(str(file))}
    assert len([entry for entry in cache.iterdir() if entry.is_dir()]) == 1
    write_gguf(file, small_model(rms_norm_eps=1e-3))
    assert absolute_model_path(str(file)) != folders[0]


def test_what_a_killed_process_left_is_written_anew(tmp_path: Path, cache: Path) -> None:
    file = write_gguf(tmp_path / "m.gguf", small_model())
    killed = os.fork()
    if not killed:
        with patch.object(gguf, "_write_weights", lambda *_: os._exit(9)):
            gguf.converted(file)
    assert os.waitstatus_to_exitcode(os.waitpid(killed, 0)[1]) == 9
    (left,) = cache.glob(".partial-*")
    assert (left / "config.json").is_file()
    check_files(str(gguf.converted(file)))
    assert not left.exists()


def test_llama_3s_factors_of_positions_become_its_scaling(tmp_path: Path) -> None:
    scaling = {
        "rope_type": "llama3",
        "rope_theta": 5e5,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
    }
    model = small_model(rope_parameters=scaling | {"original_max_position_embeddings": 8192})
    plain = 1.0 / 5e5 ** (torch.arange(0, 16, 2) / 16)
    factors = {"rope_freqs.weight": plain / model.model.rotary_emb.inv_freq}
    folder = absolute_model_path(str(write_gguf(tmp_path / "m.gguf", model, more=factors)))
    loaded = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    assert torch.allclose(loaded.model.rotary_emb.inv_freq, model.model.rotary_emb.inv_freq)


REFUSED = {
    "other positions": ({}, {"rope_freqs.weight": torch.full((8,), 3.0)}, "rope_freqs.weight"),
    "more tensors": (
        {},
        {"blk.0.extra.weight": torch.zeros(4)},
        "1 tensor for which transformers' llama has no place, such as blk.0.extra",
    ),
    "scaled positions": ({"llama.rope.scaling.type": "yarn"}, {}, "scales its positions (yarn)"),
    "rule": ({"tokenizer.ggml.pre": "new-rule"}, {}, "cuts text by the rule 'new-rule'"),
    "tokenizer": (
        {"tokenizer.ggml.model": "rwkv"},
        {},
        "a tokenizer of kind 'rwkv'; expected 'gpt2' or 'llama'",
    ),
    "no end": ({"tokenizer.ggml.eos_token_id": None}, {}, "names no end token"),
    "end outside": ({"tokenizer.ggml.eos_token_id": 9999}, {}, "its eos_token has id 9999"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_transformers_would_read_wrongly_is_refused_by_one_line(
    case: str, tmp_path: Path, cache: Path
) -> None:
    fields, more, message = REFUSED[case]
    file = write_gguf(tmp_path / "m.gguf", small_model(), fields=fields, more=more)
    with pytest.raises(ModelPathError) as error:
        absolute_model_path(str(file))
    assert message in str(error.value)
    assert "\n" not in str(error.value)
    assert not [entry for entry in cache.iterdir() if entry.is_dir()]


def test_a_file_of_another_architecture_names_those_that_can_be_read(tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "m.gguf", small_model())
    data = file.read_bytes()
    file.write_bytes(data.replace(b"llama", b"lyama"))
    with pytest.raises(ModelPathError, match=r"architecture 'lyama'.*it reads .*llama.*qwen3"):
        absolute_model_path(str(file))


def test_a_type_that_cannot_be_dequantized_is_named_with_those_that_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write_gguf(tmp_path / "m.gguf", small_model(), kind=GGMLQuantizationType.Q8_0)
    monkeypatch.setattr(gguf, "_is_readable", lambda kind: kind.name != "Q8_0")
    with pytest.raises(ModelPathError, match=r"as Q8_0, which cannot be dequantized; types that can: .*Q4_1"):
        absolute_model_path(str(file))


@pytest.mark.parametrize("share", [0.0, 0.001, 0.02, 0.5, 0.999])
def test_a_cut_file_is_refused_by_one_line(share: float, tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "m.gguf", small_model())
    data = file.read_bytes()
    file.write_bytes(data[: int(len(data) * share)])
    with pytest.raises(ModelPathError, match=r"cannot be read: .*cut or damaged") as error:
        absolute_model_path(str(file))
    assert "\n" not in str(error.value)


def test_paths_that_name_no_single_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelPathError, match="does not exist"):
        absolute_model_path(str(tmp_path / "none.gguf"))
    for name in ("a.gguf", "b.gguf"):
        (tmp_path / name).touch()
    with pytest.raises(ModelPathError, match=r"has 2 GGUF files: name one"):
        absolute_model_path(str(tmp_path))


def test_weights_of_transformers_come_before_a_file_beside_them(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").touch()
    (tmp_path / "m.gguf").touch()
    assert absolute_model_path(str(tmp_path)) == str(tmp_path)
