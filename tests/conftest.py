"""Fixtures that every test may use; nothing here reaches the network."""

import gc
import os
from pathlib import Path

import hypothesis
import pytest

# Property tests draw the same examples in every run; `--hypothesis-profile random` searches for new ones.
hypothesis.settings.register_profile("fixed", derandomize=True)
hypothesis.settings.register_profile("random", derandomize=False, print_blob=True)
hypothesis.settings.load_profile("fixed")

pytest.register_assert_rewrite("tests.sandbox.arena")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("WANDB_MODE", "offline")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
if int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")) > 1:
    # Test processes share the cores; threads that wait for each other's cores would take several times as long.
    os.environ.setdefault("OMP_NUM_THREADS", "1")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options of this suite; here, so that they are known however pytest is called."""
    parser.addoption(
        "--all-levels", action="store_true", help="tests/e2e/test_levels.py: every level with every engine on every controller"
    )
    parser.addoption(
        "--timing", choices=("with", "without", "only"), default="with", help="whether tests that measure time (mark timing) run"
    )


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """A file of tests stays in one process, but for `spread` ones: those go one by one to the next free process, and first."""
    if (timing := config.getoption("--timing")) != "with":
        chosen = [item for item in items if (item.get_closest_marker("timing") is not None) == (timing == "only")]
        config.hook.pytest_deselected(items=list(set(items) - set(chosen)))
        items[:] = chosen
        gc.collect()
        gc.freeze()  # else a collection of the whole session's objects stops what is measured for most of a second
    for item in items:
        if not item.get_closest_marker("spread"):
            item.add_marker(pytest.mark.xdist_group(item.nodeid.split("::")[0]))
    items.sort(key=lambda item: item.get_closest_marker("spread") is None)


def pytest_sessionfinish() -> None:
    gc.unfreeze()


CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SPECIAL_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def save_tokenizer(folder: Path) -> int:
    """Write a byte-level tokenizer (one token a byte, no merges) with a chat template; returns the vocabulary size."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {character: i for i, character in enumerate(alphabet)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(SPECIAL_TOKENS)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>", chat_template=CHAT_TEMPLATE
    )
    fast.save_pretrained(folder)
    return len(fast)


@pytest.fixture(scope="session")
def tiny_model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Hugging Face folder: random two-layer Qwen3 (about 50k parameters, fp32) with a byte-level tokenizer and chat template.

    The weights come from seed 0, so every session sees the same model. Copy the folder before changing it.
    """
    return save_tiny_model(tmp_path_factory.mktemp("tiny_qwen3"))


@pytest.fixture(scope="session")
def wide_heads_model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As `tiny_model_dir`, with attention heads as wide as vLLM needs them on a CPU."""
    return save_tiny_model(tmp_path_factory.mktemp("tiny_qwen3"), head_dim=32)


def save_tiny_model(folder: Path, head_dim: int = 8) -> Path:
    """Write the model and the tokenizer; returns the folder."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    vocab_size = save_tokenizer(folder)
    config = Qwen3Config(
        vocab_size=vocab_size,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=head_dim,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=vocab_size - 1,
        pad_token_id=vocab_size - len(SPECIAL_TOKENS),
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = Qwen3ForCausalLM(config)
    model.save_pretrained(folder)
    return folder


LLAMA_TEMPLATE = (
    "<|begin_of_text|>{% for message in messages %}<|start_header_id|>{{ message['role'] }}<|end_header_id|>\n\n{{ message['content'] }}"
    "<|eot_id|>{% endfor %}{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
LLAMA_TOKENS = ["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]


@pytest.fixture(scope="session")
def tiny_llama_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another family beside `tiny_model_dir`: a random Llama with untied weights and a tokenizer with merges and other special tokens.

    As in the models of that family, texts end with a token that is not the one that ends a turn, which the generation config names.
    """
    return save_tiny_llama(tmp_path_factory.mktemp("tiny_llama"))


@pytest.fixture(scope="session")
def wide_heads_llama_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As `tiny_llama_dir`, with attention heads as wide as vLLM needs them on a CPU."""
    return save_tiny_llama(tmp_path_factory.mktemp("tiny_llama"), head_dim=32)


def save_tiny_llama(folder: Path, head_dim: int = 8) -> Path:
    """Write the model and the tokenizer; returns the folder."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=320, special_tokens=LLAMA_TOKENS, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(["Ask: Judge: user assistant system verify approve reject the answer is"] * 2, trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=LLAMA_TOKENS[0], eos_token=LLAMA_TOKENS[1], chat_template=LLAMA_TEMPLATE
    )
    fast.save_pretrained(folder)
    config = LlamaConfig(
        vocab_size=len(fast),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        head_dim=head_dim,
        max_position_embeddings=1024,
        tie_word_embeddings=False,
        bos_token_id=0,
        eos_token_id=[1, 4],
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        model = LlamaForCausalLM(config)
    model.save_pretrained(folder)
    return folder
