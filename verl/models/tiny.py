"""A tiny Qwen3-architecture model with its own tokenizer, made without downloads: the model of the
embedded default and of tests.

The tokenizer is a byte-level BPE trained on given texts, so it encodes any text; every digit is a
token, so that arithmetic is learned digit by digit.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

PAD_TOKEN = "<|endoftext|>"
START_TOKEN = "<|im_start|>"
END_TOKEN = "<|im_end|>"
# their ids are their positions: the trainer of the tokenizer puts them first
SPECIAL_TOKENS = (
    PAD_TOKEN,
    START_TOKEN,
    END_TOKEN,
)
# of tools it shows the names of their arguments: a tiny model has no use for schemas
CHAT_TEMPLATE = (
    "{% if tools %}{{ '<|im_start|>system\nCall by <tool_call>:' }}{% for tool in tools %}{{ ' ' + "
    "tool.function.name + '(' + tool.function.parameters.properties | join(', ') + ')' }}{% endfor "
    "%}{{ '<|im_end|>\n' }}{% endif %}{% for message in messages %}{{ '<|im_start|>' + "
    "message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}{% endfor %}{% if "
    "add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


@dataclass(frozen=True)
class TinyModelSize:
    """Shape of the tiny model; the defaults give about 0.7 million parameters.

    Tied embeddings save memory and learn faster at first. But words that compete for one position
    of a reply then get nearly the same input vectors too, so the following tokens hardly depend on
    which of them was sampled: untie them if a first word decides the rest.
    """

    hidden_size: int = 128
    intermediate_size: int = 384
    num_layers: int = 3
    num_heads: int = 4
    num_kv_heads: int = 2
    max_position_embeddings: int = 1024
    weight_std: float = 0.08
    tie_embeddings: bool = True
    embedding_std: float = 0.02


def train_tokenizer(corpus: Iterable[str], vocab_size: int = 768) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE with ChatML tokens on `corpus`; at most `vocab_size` tokens, at least
    256 bytes plus the special ones.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator([*corpus, "system\n", "user\n", "assistant\n"], trainer=trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END_TOKEN,
        pad_token=PAD_TOKEN,
        additional_special_tokens=[START_TOKEN],
        padding_side="left",
    )
    fast.chat_template = CHAT_TEMPLATE
    fast.model_max_length = 1_000_000
    return fast


def make_tiny_model(
    path: str | Path,
    corpus: Iterable[str],
    *,
    size: TinyModelSize | None = None,
    vocab_size: int = 768,
    seed: int = 0,
    tokenizer: PreTrainedTokenizerFast | None = None,
) -> Path:
    """Write a randomly initialised model and its tokenizer as a Hugging Face folder and return the
    folder.

    The result is a function of the arguments alone; the global random state is not changed. With a
    `tokenizer` none is trained, and corpus and vocab_size have no effect.
    """
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    size = size or TinyModelSize()
    tokenizer = tokenizer or train_tokenizer(corpus, vocab_size)
    config = Qwen3Config(
        vocab_size=_round_up(len(tokenizer), 64),
        hidden_size=size.hidden_size,
        intermediate_size=size.intermediate_size,
        num_hidden_layers=size.num_layers,
        num_attention_heads=size.num_heads,
        num_key_value_heads=size.num_kv_heads,
        head_dim=size.hidden_size // size.num_heads,
        max_position_embeddings=size.max_position_embeddings,
        initializer_range=size.weight_std,
        tie_word_embeddings=size.tie_embeddings,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen3ForCausalLM(config)
        # Narrow matrices need a larger standard deviation than the usual 0.02 to start learning;
        # tied embeddings do not.
        torch.nn.init.normal_(model.model.embed_tokens.weight, std=size.embedding_std)
    folder = Path(path)
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
