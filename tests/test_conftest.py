"""The shared model folder is one that plain transformers loads."""

from pathlib import Path

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
