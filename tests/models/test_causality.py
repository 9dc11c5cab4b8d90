"""A model that reads later tokens, or positions of its own, is refused in one line; values are checked on the
class that gives them.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig

from tests.models.families import FAMILIES, save_model
from verl.models.loader import ModelPathError
from verl.models.positions import fails_beyond_positions
from verl.models.value_model import check_value_model
from verl.trainer.sft.exactness import rows_run
from verl.workers.engine.layout_check import LayoutError, choose_layout, training_randomness


def small(model_type: str, **fields: Any) -> Any:
    """A configuration of two layers of an encoder's class."""
    sizes = {
        "hidden_size": 64,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "vocab_size": 300,
    }
    return type(AutoConfig.for_model(model_type))(**{**sizes, **fields})


def with_field(name: str, **fields: Any) -> Any:
    config = FAMILIES[name].config()
    for field, value in fields.items():
        setattr(config, field, value)
    return config


READS_LATER: dict[str, Callable[[], Any]] = {
    "bert": lambda: small("bert"),
    "electra": lambda: small("electra", embedding_size=64),
    "rembert": lambda: small("rembert", input_embedding_size=32, output_embedding_size=32),
    "llama that is not causal": lambda: with_field("llama", is_causal=False),
    "embedding gemma": lambda: with_field("gemma3_text", use_bidirectional_attention=True),
}


@pytest.mark.parametrize("name", READS_LATER)
def test_a_model_that_reads_later_tokens_is_refused_in_one_line(name: str) -> None:
    config = READS_LATER[name]()
    for values in (False, True) if name != "embedding gemma" else (False,):
        with pytest.raises(LayoutError, match="is no causal language model as configured") as refused:
            choose_layout(config, values=values)
        assert "\n" not in str(refused.value)
    with pytest.raises(ModelPathError, match="is no causal language model as configured"):
        rows_run(config)
    assert training_randomness(config) is None or "random" in str(training_randomness(config))


@pytest.mark.parametrize("name", ["roberta", "xlm-roberta", "camembert"])
def test_a_model_that_counts_positions_in_another_way_is_refused_in_one_line(name: str) -> None:
    """Its positions begin behind its padding token, and the trainer's at 0."""
    config = small(name, is_decoder=True, pad_token_id=1, bos_token_id=0, eos_token_id=2)
    with pytest.raises(LayoutError, match="not exact as configured") as refused:
        choose_layout(config)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("name", ["qwen3", "gemma2", "llama-dynamic", "gpt_oss"])
def test_values_have_a_layout_of_their_own_class(name: str) -> None:
    config = FAMILIES[name].config()
    choice = choose_layout(config, values=True)
    assert choice.difference < 1e-4
    assert choice.layout == choose_layout(config).layout


def test_a_class_without_a_language_model_gives_no_critic(tmp_path: Path) -> None:
    AutoConfig.for_model("distilbert").save_pretrained(tmp_path)
    with pytest.raises(ModelPathError, match="cannot be a critic: transformers has no causal language model"):
        check_value_model(str(tmp_path))


def test_a_vocabulary_of_few_tokens_is_no_obstacle(tmp_path: Path) -> None:
    config = with_field("llama", vocab_size=64)
    assert choose_layout(config).layout.packed
    assert rows_run(config).together
    check_value_model(str(save_model("llama", tmp_path)))


@pytest.mark.parametrize("name", ["gpt2", "opt", "gpt_bigcode", "qwen3", "gptj", "mamba2", "bloom"])
def test_models_with_learned_positions_fail_beyond_them(name: str) -> None:
    config = FAMILIES[name].config()
    assert fails_beyond_positions(config) is (name in {"gpt2", "opt", "gpt_bigcode", "gptj"})
