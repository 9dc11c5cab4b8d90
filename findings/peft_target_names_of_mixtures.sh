#!/usr/bin/env bash
# PEFT 0.21.2 with transformers 5.17.0: `target_modules=["mlp.down_proj", "shared_experts.down_proj"]` on a DeepSeek-V3 model puts no
# adapter on these layers. `inject_adapter` first replaces every target that ends in the name of a projection of the experts of older
# releases (`gate_proj`, `up_proj`, `down_proj`, `gate`), also as a full name or in a regex, by a parameter of the routed experts
# (`_convert_peft_config_moe`, made to load adapters of transformers 4). The dense MLP and the shared experts, which are still
# `nn.Linear` under these names, get nothing, and a name alone is an error that names a layer nobody asked for.
# `target_parameters=["...down_proj.weight"]` is left alone and adapts the linear layer.
#
# Output of the last part of this script:
#   target_modules=['model.layers.0.mlp.down_proj'] adapts ['model.layers.1.mlp.experts']
#   target_modules=['model.layers.1.mlp.shared_experts.down_proj'] adapts ['model.layers.1.mlp.experts']
#   target_modules='.*shared_experts.down_proj' adapts ['model.layers.1.mlp.experts']
#   target_modules=['up_proj'] raises Cannot convert PEFT target(s) up_proj without also targeting gate_proj because they are fused into
#     gate_up_proj.
#   target_parameters=['model.layers.1.mlp.shared_experts.down_proj.weight'] adapts ['model.layers.1.mlp.shared_experts.down_proj']
#
# The script ends with 1 if any of this changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 transformers==5.17.0 peft==0.21.2
"$folder/venv/bin/python" - <<'PYTHON'
import sys

from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, DeepseekV3Config

SHARED = "model.layers.1.mlp.shared_experts.down_proj"
EXPERTS = ["model.layers.1.mlp.experts"]


def adapted(**targets):
    config = DeepseekV3Config(
        vocab_size=64, hidden_size=32, intermediate_size=48, moe_intermediate_size=16, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, n_routed_experts=4, num_experts_per_tok=2, n_shared_experts=1, n_group=1, topk_group=1,
        first_k_dense_replace=1, q_lora_rank=8, kv_lora_rank=8, qk_nope_head_dim=8, qk_rope_head_dim=8, v_head_dim=16,
    )
    said = ", ".join(f"{key}={value!r}" for key, value in targets.items() if value)
    try:
        model = get_peft_model(AutoModelForCausalLM.from_config(config), LoraConfig(r=2, **targets))
    except ValueError as error:
        print(said, "raises", error)
        return str(error)
    names = {name.removeprefix("base_model.model.").split(".lora_")[0] for name, _ in model.named_parameters() if ".lora_A." in name}
    print(said, "adapts", sorted(names))
    return sorted(names)


as_described = [
    adapted(target_modules=["model.layers.0.mlp.down_proj"]) == EXPERTS,
    adapted(target_modules=[SHARED]) == EXPERTS,
    adapted(target_modules=".*shared_experts.down_proj") == EXPERTS,
    "without also targeting gate_proj" in adapted(target_modules=["up_proj"]),
    adapted(target_modules=[], target_parameters=[f"{SHARED}.weight"]) == [SHARED],
]
sys.exit(0 if all(as_described) else 1)
PYTHON
