import hashlib
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer

from verl.models.tiny import TinyModelSize, make_tiny_model, train_tokenizer

CORPUS = ["Anna has 12 apples. First Anna buys 7 more.", "First 12+7=19. \\boxed{19}"] * 3
SMALL = TinyModelSize(hidden_size=32, intermediate_size=64, num_layers=1, num_heads=2, num_kv_heads=1)


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(CORPUS, vocab_size=320)


def digest(folder):
    files = ("model.safetensors", "tokenizer.json", "config.json")
    return [hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in files]


@settings(max_examples=50, deadline=None)
@given(text=st.text(st.characters(exclude_categories=["Cs"]), max_size=60))
def test_any_text_survives_encoding(tokenizer, text):
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert tokenizer.decode(ids, clean_up_tokenization_spaces=False) == text


def test_every_digit_is_a_token_of_its_own(tokenizer):
    tokens = [tokenizer.decode([i]) for i in tokenizer("12+7=19")["input_ids"]]
    assert tokens == ["1", "2", "+", "7", "=", "1", "9"]


def test_chat_template_opens_the_assistants_turn_and_ends_with_eos(tokenizer):
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert text == "<|im_start|>system\ns<|im_end|>\n<|im_start|>user\nu<|im_end|>\n<|im_start|>assistant\n"
    assert tokenizer("<|im_end|>")["input_ids"] == [tokenizer.eos_token_id]
    assert tokenizer.pad_token_id != tokenizer.eos_token_id


def test_folder_loads_with_plain_transformers(tmp_path):
    folder = make_tiny_model(tmp_path / "m", CORPUS, size=SMALL, vocab_size=320)
    model = AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert model.config.model_type == "qwen3"
    assert model.config.eos_token_id == tokenizer.eos_token_id
    assert model.config.vocab_size >= len(tokenizer)
    ids = tokenizer("Anna has 3", return_tensors="pt")["input_ids"]
    assert model(input_ids=ids).logits.shape == (1, ids.shape[1], model.config.vocab_size)


@pytest.mark.parametrize("tie", [True, False])
def test_embeddings_are_tied_or_not_in_the_file_too(tmp_path, tie):
    folder = make_tiny_model(tmp_path / "m", CORPUS, size=replace(SMALL, tie_embeddings=tie), vocab_size=320)
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert (model.get_input_embeddings().weight is model.get_output_embeddings().weight) is tie
    assert torch.equal(model.get_input_embeddings().weight, model.get_output_embeddings().weight) is tie


def test_same_arguments_make_the_same_files_and_leave_the_random_state(tmp_path):
    torch.manual_seed(3)
    state = torch.get_rng_state()
    first = digest(make_tiny_model(tmp_path / "a", CORPUS, size=SMALL, vocab_size=320, seed=1))
    again = digest(make_tiny_model(tmp_path / "b", CORPUS, size=SMALL, vocab_size=320, seed=1))
    other = digest(make_tiny_model(tmp_path / "c", CORPUS, size=SMALL, vocab_size=320, seed=2))
    assert first == again
    assert first[0] != other[0]
    assert torch.equal(torch.get_rng_state(), state)
