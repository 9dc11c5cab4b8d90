"""Miniatures keep the structure of a model, of every class of transformers, and leave the caller's
configuration and random state alone.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.models.every_family import config_classes, variants
from tests.models.families import FAMILIES
from verl.models.miniature import MiniatureError, miniature, miniature_model

CI_STEP = 16  # every sixteenth class in CI; all of them with --all-levels
STRUCTURAL = {
    "max_position_embeddings",
    "chunk_size",
    "mamba_chunk_size",
    "block_size",
    "n_positions",
    "max_seq_len",
    "rel_extent",
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 1e4,
    "factor": 40.0,
    "original_max_position_embeddings": 4096,
    "beta_fast": 32.0,
}
LLAMA3 = {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "original_max_position_embeddings": 8192, "low_freq_factor": 1.0,
          "high_freq_factor": 4.0}  # fmt: skip
LONGROPE = {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 48, "long_factor": [1.0 + i for i in range(48)],
            "original_max_position_embeddings": 4096}  # fmt: skip


def config_of(model_type: str, **fields: Any) -> Any:
    from transformers import AutoConfig

    return type(AutoConfig.for_model(model_type))(**fields)


def tiny_or_reason(config_class: type) -> str:
    """Return nothing if a model of the class can be made tiny, run and seen to differ between tokens; else
    the reason.
    """
    reason = ""
    try:
        for config in variants(config_class):
            try:
                model = miniature_model(config, attention="eager")
            except MiniatureError as error:
                reason = reason or str(error)
                continue
            tokens = torch.arange(3, 15)[None] % model.get_input_embeddings().weight.shape[0]
            with torch.no_grad():
                logits = model(input_ids=tokens).logits.float()
            assert torch.isfinite(logits).all(), config_class.__name__
            assert logits.std(-1).mean() > 0.05, config_class.__name__
            assert logits.std(1).mean() > 0.01, config_class.__name__
            return ""
    except ValueError as error:  # the class has no defaults
        reason = reason or f"{type(error).__name__}: {' '.join(str(error).split())}"
    return reason


def test_classes_of_transformers_can_be_made_tiny_or_say_why_not(request: pytest.FixtureRequest) -> None:
    everything = request.config.getoption("--all-levels")
    classes = config_classes()[:: 1 if everything else CI_STEP]
    reasons = {config_class.__name__: tiny_or_reason(config_class) for config_class in classes}
    failed = {name: reason for name, reason in reasons.items() if reason}
    print(f"{len(reasons) - len(failed)} of {len(reasons)} classes")
    print("\n".join(f"{name}: {reason}" for name, reason in failed.items()))
    assert all("\n" not in reason for reason in failed.values())
    assert len(failed) <= 1 + 0.07 * len(reasons)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_tiny_configuration_is_left_as_it_is_apart_from_windows_and_limits(name: str) -> None:
    config = FAMILIES[name].config()
    before = config.to_dict()
    after = miniature(config).to_dict()
    assert config.to_dict() == before
    assert after.keys() == before.keys()
    changed = {key for key in before if after[key] != before[key]}
    assert changed <= STRUCTURAL | {"original_max_position_embeddings", "floor_scale", "rope_parameters"}, (
        changed
    )


def test_a_miniature_has_the_dtype_and_the_path_of_its_own_configuration() -> None:
    first = FAMILIES["qwen3_moe"].config()
    first.architectures = ["Qwen3MoeForCausalLM"]
    second = FAMILIES["qwen3_moe"].config()
    first.dtype, second.dtype = torch.bfloat16, torch.float16
    assert miniature(first).dtype == torch.bfloat16
    assert miniature(second).dtype == torch.float16
    assert miniature(second).architectures is None


PUBLISHED = {
    "llama3-gqa": ("llama", {"hidden_size": 8192, "num_hidden_layers": 80, "num_attention_heads": 64, "num_key_value_heads": 8,
                             "vocab_size": 128256, "rope_parameters": LLAMA3,
                             "max_position_embeddings": 131072}),
    "qwen2-bias": ("qwen2", {"hidden_size": 3584, "num_attention_heads": 28, "num_key_value_heads": 4, "num_hidden_layers": 28,
                             "vocab_size": 152064, "use_sliding_window": True, "sliding_window": 4096,
                             "max_window_layers": 20}),
    "gemma2-caps": ("gemma2", {}),
    "phi3-longrope": ("phi3", {"rope_parameters": LONGROPE, "original_max_position_embeddings": 4096, "max_position_embeddings": 131072}),
    "deepseek-yarn": ("deepseek_v3", {"rope_parameters": YARN}),
    "mixtral-losses": ("mixtral", {"output_router_logits": True, "sliding_window": 4096}),
    "seed-dropout": ("seed_oss", {}),
    "gpt-bigcode-mqa": ("gpt_bigcode", {"vocab_size": 49152}),
    "stablelm-partial": ("stablelm", {"use_qkv_bias": True, "tie_word_embeddings": True}),
    "gpt-oss-sinks": ("gpt_oss", {}),
}  # fmt: skip
SIZES = {"hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim", "vocab_size",
         "max_position_embeddings", "rope_parameters", "original_max_position_embeddings", "sliding_window",
         "layer_types",
         "max_window_layers", "n_layer", "n_head", "n_embd", "n_positions", "num_local_experts",
         "num_experts_per_tok"}  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
def test_options_that_are_no_size_stay_as_published(name: str) -> None:
    model_type, fields = PUBLISHED[name]
    config = config_of(model_type, **fields)
    small = miniature(config)
    for key, value in config.to_dict().items():
        if isinstance(value, (bool, float, str, type(None))) and key not in SIZES:
            assert small.to_dict()[key] == value, key
    queries = config.num_attention_heads // (getattr(config, "num_key_value_heads", None) or 1)
    assert small.num_attention_heads // (getattr(small, "num_key_value_heads", None) or 1) in (
        queries,
        small.num_attention_heads,
    )
    assert small.hidden_size <= 256
    assert small.vocab_size == 512
    assert 2 <= small.num_hidden_layers <= 4
    kinds = list(dict.fromkeys(getattr(config, "layer_types", None) or []))
    assert list(dict.fromkeys(getattr(small, "layer_types", None) or [])) == kinds
    if getattr(config, "sliding_window", None):
        assert small.sliding_window == 8


def test_ropes_with_an_original_limit_get_the_small_one() -> None:
    small = miniature(config_of("phi3", **PUBLISHED["phi3-longrope"][1]))
    rope = small.rope_parameters
    assert (rope["rope_type"], rope["original_max_position_embeddings"], small.max_position_embeddings) == (
        "longrope",
        32,
        1024,
    )
    rotary = small.hidden_size // small.num_attention_heads
    assert (len(rope["long_factor"]), len(rope["short_factor"])) == (rotary // 2, rotary // 2)
    assert len(set(rope["long_factor"])) == rotary // 2
    llama = miniature(config_of("llama", **PUBLISHED["llama3-gqa"][1]))
    assert llama.rope_parameters == {**LLAMA3, "original_max_position_embeddings": 32}
    dynamic = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 1e4}
    assert (
        miniature(
            config_of("llama", max_position_embeddings=8192, rope_parameters=dynamic)
        ).max_position_embeddings
        == 32
    )


@pytest.mark.parametrize(
    ("model_type", "field", "kinds"),
    [
        ("gemma3n_text", "layer_types", ["sliding_attention", "full_attention"]),
        ("gemma4_text", "layer_types", ["sliding_attention", "full_attention"]),
        ("qwen3_next", "layer_types", ["linear_attention", "full_attention"]),
        ("nemotron_h", "layers_block_type", ["linear_attention", "moe", "full_attention", "mlp"]),
        ("zamba2", "layers_block_type", ["linear_attention", "hybrid"]),
        ("deepseek_v32", "mlp_layer_types", ["dense", "sparse"]),
        ("smollm3", "no_rope_layers", [1, 0]),
    ],
)
def test_one_layer_of_each_kind_is_left_in_the_original_order(
    model_type: str, field: str, kinds: list[Any]
) -> None:
    small = miniature(config_of(model_type))
    assert list(dict.fromkeys(getattr(small, field))) == kinds
    assert len(getattr(small, field)) == small.num_hidden_layers <= 8


def test_shared_keys_dense_first_layers_and_groups_of_experts_are_kept() -> None:
    shared = miniature(config_of("gemma3n_text"))
    assert shared.num_kv_shared_layers == 2
    assert shared.vocab_size_per_layer_input == 512
    routed = miniature(config_of("deepseek_v3"))
    assert (routed.first_k_dense_replace, routed.num_hidden_layers) == (1, 2)
    assert (routed.n_routed_experts, routed.n_group, routed.topk_group, routed.num_experts_per_tok) == (
        8,
        2,
        1,
        2,
    )


def test_layers_with_fields_of_their_own_keep_them() -> None:
    config = config_of("gemma4_text")
    small = miniature(config)
    dims = [small.per_layer_config[index].head_dim for index in range(small.num_hidden_layers)]
    assert [dim > min(dims) for dim in dims] == [kind == "full_attention" for kind in small.layer_types]


def test_the_text_part_of_an_image_model_is_made_small_in_its_own_class() -> None:
    small = miniature(config_of("gemma3"))
    assert small.model_type == "gemma3"
    assert small.text_config.layer_types == ["sliding_attention", "full_attention"]
    assert small.text_config.sliding_window == 8
    assert small.vision_config.num_hidden_layers == 2


def test_a_class_without_a_causal_model_is_refused_in_one_line() -> None:
    with pytest.raises(
        MiniatureError, match=r"^no miniature of Mistral3Config can be built and run: [^\n]*$"
    ):
        miniature(config_of("mistral3"))


def test_random_numbers_outside_stay_and_weights_follow_the_seed() -> None:
    torch.manual_seed(5)
    state = torch.get_rng_state()
    config = config_of("llama")
    first = miniature_model(config, attention="eager", seed=1)
    again = miniature_model(config, attention="sdpa", seed=1)
    other = miniature_model(config, attention="eager", seed=2)
    assert torch.equal(torch.get_rng_state(), state)
    assert not first.training
    assert torch.equal(first.lm_head.weight, again.lm_head.weight)
    assert not torch.equal(first.lm_head.weight, other.lm_head.weight)
