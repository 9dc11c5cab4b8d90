"""Tiny models of transformers' own classes, with weights drawn so that a lost mask, window, cap, bias or
buffer shows in the log-probs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from verl.models.miniature import draw_weights

WINDOW = 8  # every sliding window, chunk and local attention
LIMIT = 32  # original positions of ropes that change beyond them

BASE: dict[str, Any] = {
    "vocab_size": 576, "hidden_size": 128, "intermediate_size": 192, "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 1024, "pad_token_id": 0, "bos_token_id": None,
    "eos_token_id": 2,
}  # fmt: skip
HEAD: dict[str, Any] = {"head_dim": 32}
MOE: dict[str, Any] = {"moe_intermediate_size": 64, "num_experts": 4, "num_experts_per_tok": 2}
LOCAL: dict[str, Any] = {"num_local_experts": 4, "num_experts_per_tok": 2}
SHARED: dict[str, Any] = {"shared_expert_intermediate_size": 64}
MLA: dict[str, Any] = {
    "num_key_value_heads": 4, "q_lora_rank": 32, "kv_lora_rank": 32, "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 16, "v_head_dim": 32,
}  # fmt: skip
LINEAR: dict[str, Any] = {
    "head_dim": 32, "num_hidden_layers": 4, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
}  # fmt: skip
MAMBA: dict[str, Any] = {
    "mamba_n_heads": 8,
    "mamba_d_head": 32,
    "mamba_n_groups": 2,
    "mamba_d_state": 16,
    "mamba_chunk_size": 16,
}
ROUTED: dict[str, Any] = {
    "moe_intermediate_size": 64, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1,
    "n_group": 1, "topk_group": 1,
}  # fmt: skip
ALTERNATING = ["sliding_attention", "full_attention"] * 2
LONGROPE: dict[str, Any] = {
    "rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 16,
    "long_factor": [1 + 0.5 * i for i in range(16)],
    "original_max_position_embeddings": LIMIT, "partial_rotary_factor": 1.0,
}  # fmt: skip


@dataclass(frozen=True)
class Family:
    """A tiny configuration: the model type of transformers, and the fields that it adds to `BASE`."""

    model_type: str
    fields: Mapping[str, Any] = field(default_factory=dict)

    def config(self) -> Any:
        """Return the configuration; fields of `BASE` that the class does not know are left out."""
        from transformers import AutoConfig

        probe = AutoConfig.for_model(self.model_type)
        known = {name: value for name, value in BASE.items() if hasattr(probe, name)}
        return type(probe)(**{**known, **self.fields})


FAMILIES: dict[str, Family] = {
    "qwen3": Family("qwen3", HEAD),
    "qwen2": Family("qwen2"),
    "qwen2-window": Family("qwen2", {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1}),
    "llama": Family("llama", HEAD),
    "llama-tied": Family("llama", HEAD | {"tie_word_embeddings": True}),
    "llama-dynamic": Family("llama", HEAD | {
        "max_position_embeddings": LIMIT,
        "rope_parameters": {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 1e4}}),
    "mistral": Family("mistral", HEAD | {"sliding_window": None}),
    "mistral-window": Family("mistral", HEAD | {"sliding_window": WINDOW}),
    "seed_oss": Family("seed_oss", HEAD),
    "gpt2": Family("gpt2", {"n_embd": 128, "n_layer": 3, "n_head": 4, "n_positions": 1024}),
    "opt": Family("opt", {"hidden_size": 128, "ffn_dim": 192, "word_embed_proj_dim": 128}),
    "phimoe": Family("phimoe", LOCAL | {"sliding_window": WINDOW}),
    "recurrent_gemma": Family("recurrent_gemma", {"attention_window_size": WINDOW, "lru_width": 128}),
    "gemma": Family("gemma", HEAD),
    "gemma2": Family("gemma2", HEAD | {
        "query_pre_attn_scalar": 32, "sliding_window": WINDOW, "num_hidden_layers": 4,
        "attn_logit_softcapping": 20.0}),
    "gemma2-no-cap": Family("gemma2", HEAD | {
        "query_pre_attn_scalar": 32, "sliding_window": WINDOW, "num_hidden_layers": 4,
        "attn_logit_softcapping": None}),
    "gemma3_text": Family("gemma3_text", HEAD | {
        "query_pre_attn_scalar": 32, "sliding_window": WINDOW, "num_hidden_layers": 4,
        "layer_types": ALTERNATING}),
    "nemotron": Family("nemotron", HEAD),
    "stablelm": Family("stablelm"),
    "falcon": Family("falcon", {"alibi": False, "new_decoder_architecture": True, "num_kv_heads": 2}),
    "gpt_oss": Family("gpt_oss", HEAD | LOCAL | {"sliding_window": WINDOW, "num_hidden_layers": 4}),
    "bloom": Family("bloom", {"n_layer": 3, "n_head": 4}),
    "mpt": Family("mpt", {"d_model": 128, "n_heads": 4, "n_layers": 3}),
    "gptj": Family("gptj", {"n_embd": 128, "n_layer": 3, "n_head": 4, "rotary_dim": 16, "n_positions": 1024}),
    "mamba2": Family("mamba2", {"num_heads": 8, "head_dim": 32, "n_groups": 2, "state_size": 16, "chunk_size": 16}),
    "phi3-longrope": Family("phi3", {
        "sliding_window": None, "original_max_position_embeddings": LIMIT, "rope_parameters": LONGROPE}),
    "phi3-window": Family("phi3", {"sliding_window": WINDOW}),
    "deepseek_v2": Family("deepseek_v2", MLA | {
        "moe_intermediate_size": 64, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1,
        "first_k_dense_replace": 1}),
    "deepseek_v3": Family("deepseek_v3", MLA | {
        "moe_intermediate_size": 64, "n_routed_experts": 8, "num_experts_per_tok": 2, "n_shared_experts": 1,
        "n_group": 2,
        "topk_group": 1, "first_k_dense_replace": 1}),
    "glm4": Family("glm4", HEAD),
    "glm4_moe": Family("glm4_moe", ROUTED | HEAD | {"first_k_dense_replace": 1, "use_qk_norm": True}),
    "glm4_moe_lite": Family("glm4_moe_lite", MLA | ROUTED),
    "dots1": Family("dots1", ROUTED | HEAD | {"first_k_dense_replace": 1, "sliding_window": None}),
    "minimax_m2": Family("minimax_m2", HEAD | LOCAL),
    "minimax": Family("minimax", HEAD | {
        "layer_types": ["linear_attention", "full_attention", "linear_attention"], "block_size": 16,
        "num_local_experts": 4}),
    "lfm2": Family("lfm2", {"layer_types": ["conv", "full_attention", "full_attention"]}),
    "lfm2_moe": Family("lfm2_moe", {
        "layer_types": ["conv", "full_attention", "full_attention"], "num_dense_layers": 1, "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 64, "use_expert_bias": True}),
    "nemotron_h": Family("nemotron_h", HEAD | {
        "layers_block_type": ["mamba", "attention", "mlp", "mamba", "moe"], "ssm_state_size": 16,
        "mamba_num_heads": 8,
        "mamba_head_dim": 32, "n_groups": 2, "chunk_size": 16, "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 64, "moe_shared_expert_intermediate_size": 64}),
    "falcon_h1": Family("falcon_h1", MAMBA | {"mamba_d_ssm": 256, "mamba_expand": 2}),
    "bamba": Family("bamba", MAMBA | {"attn_layer_indices": [1]}),
    "zamba2": Family("zamba2", {
        "num_hidden_layers": 4, "num_key_value_heads": 4, "layers_block_type": ["mamba", "hybrid"] * 2,
        "mamba_d_state": 16,
        "n_mamba_heads": 8, "mamba_headdim": 32, "mamba_ngroups": 2, "chunk_size": 16,
        "hybrid_layer_ids": [1, 3], "num_mem_blocks": 1,
        "use_mem_rope": True, "adapter_rank": 8}),
    "gemma3n_text": Family("gemma3n_text", HEAD | {
        "sliding_window": WINDOW, "num_hidden_layers": 4, "layer_types": ALTERNATING,
        "num_kv_shared_layers": 2,
        "vocab_size_per_layer_input": 576, "hidden_size_per_layer_input": 16, "laurel_rank": 8,
        "activation_sparsity_pattern": [0.0] * 4,
        "altup_num_inputs": 2, "intermediate_size": [192] * 4}),
    "gemma4_text": Family("gemma4_text", HEAD | {
        "global_head_dim": 64, "num_global_key_value_heads": 1, "sliding_window": WINDOW,
        "num_hidden_layers": 4,
        "layer_types": ALTERNATING, "num_kv_shared_layers": 2, "vocab_size_per_layer_input": 576,
        "hidden_size_per_layer_input": 16}),
    "gemma4_moe": Family("gemma4_text", HEAD | {
        "global_head_dim": 64, "num_global_key_value_heads": 1, "sliding_window": WINDOW,
        "num_hidden_layers": 2,
        "layer_types": ["sliding_attention", "full_attention"], "num_kv_shared_layers": 0,
        "vocab_size_per_layer_input": 576,
        "hidden_size_per_layer_input": 0, "enable_moe_block": True, "num_experts": 4, "top_k_experts": 2,
        "moe_intermediate_size": 64,
        "attention_k_eq_v": True}),
    "apertus": Family("apertus", {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}),
    "qwen3_moe": Family("qwen3_moe", HEAD | MOE | {"norm_topk_prob": True}),
    "qwen2_moe": Family("qwen2_moe", MOE | SHARED),
    "qwen2_moe-window": Family("qwen2_moe", MOE | SHARED | {
        "use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1}),
    "qwen3_next": Family("qwen3_next", LINEAR | MOE | SHARED),
    "qwen3_5_text": Family("qwen3_5_text", LINEAR),
    "qwen3_5_moe_text": Family("qwen3_5_moe_text", LINEAR | MOE | SHARED),
    "mixtral": Family("mixtral", HEAD | LOCAL),
    "olmoe": Family("olmoe", {"num_experts": 4, "num_experts_per_tok": 2}),
    "granitemoe": Family("granitemoe", LOCAL),
    "granite": Family("granite"),
    "ernie4_5": Family("ernie4_5", HEAD),
    "ernie4_5_moe": Family("ernie4_5_moe", {
        "moe_num_experts": 4, "moe_k": 2, "moe_intermediate_size": 64, "moe_num_shared_experts": 1,
        "moe_layer_start_index": 1,
        "use_bias": False}),
    "llama4_text": Family("llama4_text", HEAD | {
        "intermediate_size_mlp": 192, "num_hidden_layers": 4, "num_local_experts": 2,
        "num_experts_per_tok": 1,
        "attention_chunk_size": WINDOW, "interleave_moe_layer_step": 1}),
    "cohere": Family("cohere"),
    "cohere2": Family("cohere2", {"sliding_window": WINDOW, "num_hidden_layers": 4}),
    "olmo2": Family("olmo2"),
    "olmo3": Family("olmo3", {"sliding_window": WINDOW, "num_hidden_layers": 4}),
    "exaone4": Family("exaone4", {
        "sliding_window": WINDOW, "sliding_window_pattern": 2, "num_hidden_layers": 4,
        "layer_types": ALTERNATING}),
    "starcoder2": Family("starcoder2", {"sliding_window": WINDOW}),
    "smollm3": Family("smollm3", {"num_hidden_layers": 4, "no_rope_layers": [1, 1, 1, 0]}),
    "hunyuan_v1_dense": Family("hunyuan_v1_dense", HEAD),
    "phi": Family("phi"),
    "gpt_neox": Family("gpt_neox"),
    "gpt_bigcode": Family("gpt_bigcode", {"n_embd": 128, "n_layer": 3, "n_head": 4, "n_positions": 1024}),
}  # fmt: skip


def make_model(config: Any, *, attention: str = "eager", seed: int = 0) -> Any:
    """Return a causal language model of a configuration in fp32 and `eval` mode, with the weights of
    `draw_weights`.
    """
    from transformers import AutoModelForCausalLM

    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, attn_implementation=attention).float().eval()
    draw_weights(model, seed)
    return model


def save_model(name: str, folder: Path, finish: Callable[[Path], object] = lambda folder: None) -> Path:
    """Write a family's model, without a tokenizer unless `finish` adds one; return the folder."""
    make_model(FAMILIES[name].config()).save_pretrained(folder)
    finish(folder)
    return folder
