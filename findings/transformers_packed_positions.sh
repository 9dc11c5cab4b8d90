#!/usr/bin/env bash
# transformers 5.17.0: rows that are packed into one, with position ids that begin anew (as padding-free collators make them), are separate
# for the attention only under conditions that no argument names; else later rows see earlier ones, without a warning:
#
#   - `use_cache=False` must be given. By default the forward pass makes a cache, and with one the positions are not looked at
#   - the attention mask must be left out: a mask of ones, which means the same, turns the separation off
#   - gpt-oss never separates them: its model does not pass the position ids to the mask
#   - Qwen3-Next separates them in its full attention, not in its linear attention, on a CPU; LFM2 neither in its convolutions
#
# Output of the last part of this script (largest change of the second row's logits when the first row is another one):
#   llama: use_cache=False 0.000, default 2.594, use_cache=False and a mask of ones 2.594
#   gpt_oss: use_cache=False 2.433, default 2.433, use_cache=False and a mask of ones 2.433
#   qwen3_next: use_cache=False 2.173, default 1.803, use_cache=False and a mask of ones 1.803
#   lfm2: use_cache=False 0.388, default 1.098, use_cache=False and a mask of ones 1.098
#
# The script ends with 1 if any of this changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 transformers==5.17.0
"$folder/venv/bin/python" - 2> /dev/null <<'PYTHON'
import sys

import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

SMALL = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    "initializer_range": 0.1,
}
EXPERTS = {"num_local_experts": 4, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
LINEAR = {
    "layer_types": ["linear_attention", "full_attention"], "shared_expert_intermediate_size": 16, "linear_num_value_heads": 4,
    "linear_num_key_heads": 2, "linear_key_head_dim": 8, "linear_value_head_dim": 8,
}
MODELS = {
    "llama": {},
    "gpt_oss": EXPERTS,
    "qwen3_next": EXPERTS | LINEAR,
    "lfm2": {"layer_types": ["conv", "full_attention"]},
}
CALLS = {
    "use_cache=False": {"use_cache": False},
    "default": {},
    "use_cache=False and a mask of ones": {"use_cache": False, "attention_mask": torch.ones(1, 11, dtype=torch.long)},
}
POSITIONS = torch.cat([torch.arange(6), torch.arange(5)])[None]


def tokens(count, seed):
    return torch.randint(3, 64, (1, count), generator=torch.Generator().manual_seed(seed))


as_described = []
for name, options in MODELS.items():
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(CONFIG_MAPPING[name](**SMALL, **options)).eval()
    changes = {}
    for call, arguments in CALLS.items():
        rows = [torch.cat([tokens(6, seed), tokens(5, 9)], dim=1) for seed in (1, 2)]
        with torch.no_grad():
            one, other = (model(input_ids=row, position_ids=POSITIONS, **arguments).logits[:, 6:] for row in rows)
        changes[call] = (one - other).abs().max().item()
    print(f"{name}:", ", ".join(f"{call} {change:.3f}" for call, change in changes.items()))
    separate = [change < 1e-4 for change in changes.values()]
    as_described.append(separate == [name == "llama", False, False])
sys.exit(0 if all(as_described) else 1)
PYTHON
