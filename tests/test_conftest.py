"""The shared model folder is one that plain transformers loads."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


def test_tiny_model_dir_loads_and_its_tokenizer_round_trips(tiny_model_dir: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny_model_dir)
    model = AutoModelForCausalLM.from_pretrained(tiny_model_dir)
    text = "What is 3 + 4?\n<answer>é 7</answer>"
    assert tokenizer.decode(tokenizer(text).input_ids) == text
    rendered = tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], add_generation_prompt=True, tokenize=False)
    assert rendered == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    ids = tokenizer(rendered, return_tensors="pt").input_ids
    assert ids[0, 0] == tokenizer.convert_tokens_to_ids("<|im_start|>")
    assert tokenizer.eos_token_id == model.config.eos_token_id
    assert tokenizer.pad_token_id == model.config.pad_token_id != tokenizer.eos_token_id
    assert torch.isfinite(model(ids).logits).all()


def test_tests_of_one_file_stay_in_one_process(request: pytest.FixtureRequest) -> None:
    """pytest-xdist reads a test's group from the suffix it adds to the node id; pytest 9.2 ignores that suffix."""
    if not hasattr(request.config, "workerinput"):
        pytest.skip("this session has one process")
    assert request.node.nodeid.endswith("@tests/test_conftest.py")
