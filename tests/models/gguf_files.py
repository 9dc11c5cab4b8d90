"""GGUF files for tests, written from small models as llama.cpp's converter writes them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from gguf import MODEL_ARCH_NAMES, GGMLQuantizationType, GGUFWriter, get_tensor_name_map, quantize
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

from verl.models.tiny import CHAT_TEMPLATE, SPECIAL_TOKENS, train_tokenizer

SHAPE = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16, "vocab_size": 384,
}  # fmt: skip
MODELS = {"llama": (LlamaConfig, LlamaForCausalLM), "qwen3": (Qwen3Config, Qwen3ForCausalLM)}


def small_model(architecture: str = "llama", **options: Any) -> Any:
    """Return a small model of one of `MODELS`, drawn with seed 0."""
    config, model = MODELS[architecture]
    torch.manual_seed(0)
    return model(config(**SHAPE, **options)).eval()


def permuted(weights: torch.Tensor, heads: int) -> torch.Tensor:
    """Return the rows of a projection of Llama in the order of llama.cpp, which rotates neighbours."""
    return (
        weights.reshape(heads, 2, weights.shape[0] // heads // 2, *weights.shape[1:])
        .swapaxes(1, 2)
        .reshape(weights.shape)
    )


def write_gguf(
    path: Path,
    model: Any,
    *,
    architecture: str = "llama",
    kind: GGMLQuantizationType = GGMLQuantizationType.F32,
    fields: Mapping[str, Any] | None = None,
    more: Mapping[str, torch.Tensor] | None = None,
    last_token: str | None = None,
) -> Path:
    """Write a model with the tiny tokenizer; `fields` replace strings and numbers of the metadata, None
    leaves one out. No merges lead to the last token.
    """
    tokenizer = train_tokenizer(["Anna has 12 apples and buys 7 more."], vocab_size=SHAPE["vocab_size"])
    text = json.loads(tokenizer.backend_tokenizer.to_str())
    config = model.config
    writer = GGUFWriter(path, architecture)
    values: dict[str, Any] = {
        "general.name": "small",
        f"{architecture}.block_count": config.num_hidden_layers,
        f"{architecture}.context_length": config.max_position_embeddings,
        f"{architecture}.embedding_length": config.hidden_size,
        f"{architecture}.feed_forward_length": config.intermediate_size,
        f"{architecture}.attention.head_count": config.num_attention_heads,
        f"{architecture}.attention.head_count_kv": config.num_key_value_heads,
        f"{architecture}.attention.key_length": config.head_dim,
        f"{architecture}.rope.dimension_count": config.head_dim,
        f"{architecture}.rope.freq_base": float(config.rope_parameters["rope_theta"]),
        f"{architecture}.attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.padding_token_id": 0,
        "tokenizer.chat_template": CHAT_TEMPLATE,
    }
    for name, value in (values | dict(fields or {})).items():
        if isinstance(value, str):
            writer.add_string(name, value)
        elif isinstance(value, float):
            writer.add_float32(name, value)
        elif value is not None:
            writer.add_uint32(name, value)
    words = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
    words += [f"<unused{index}>" for index in range(config.vocab_size - len(words))]
    words[-1] = last_token or words[-1]
    writer.add_token_list(words)
    writer.add_token_types([3 if word in SPECIAL_TOKENS else 1 for word in words])
    writer.add_token_merges([" ".join(merge) for merge in text["model"]["merges"]])
    _add_tensors(writer, model, architecture, kind, more or {})
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_tensors(
    writer: GGUFWriter,
    model: Any,
    architecture: str,
    kind: GGMLQuantizationType,
    more: Mapping[str, torch.Tensor],
) -> None:
    arch = next(key for key, name in MODEL_ARCH_NAMES.items() if name == architecture)
    names = get_tensor_name_map(arch, model.config.num_hidden_layers)
    heads = {"q_proj": model.config.num_attention_heads, "k_proj": model.config.num_key_value_heads}
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and model.config.tie_word_embeddings:
            continue
        own = next((number for part, number in heads.items() if part in name), None)
        values = (permuted(tensor, own) if own and architecture == "llama" else tensor).numpy()
        own_kind = kind if values.ndim > 1 else GGMLQuantizationType.F32
        writer.add_tensor(names.get_name(name, (".weight",)), quantize(values, own_kind), raw_dtype=own_kind)
    for name, tensor in more.items():
        writer.add_tensor(name, tensor.numpy())
