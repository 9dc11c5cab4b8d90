#!/usr/bin/env bash
# PEFT 0.21.2: `add_weighted_adapter` on adapters with `use_rslora=True` makes an adapter that is too strong by the square root of its rank,
# for every combination type. The new adapter takes the first one's configuration with `lora_alpha` set to its rank, so that its scale is
# meant to be 1; with rsLoRA the scale is alpha / sqrt(rank), which is sqrt(rank). One adapter, combined alone with the weight 1, does not
# give its own outputs: its change of a layer is twice as large at rank 4, four times at rank 16.
#
# With `init_lora_weights="pissa"` or "olora" the new adapter is initialized as the first one was, which takes the principal part of the
# base weights out of them once more: adding a combination changes the outputs of every adapter that is there, and of the base model.
#
# Output of the last part of this script (change of a layer's weight by the combined adapter over that by the adapter itself):
#   use_rslora=False rank 4: cat 1.000, svd 1.000, linear 1.000
#   use_rslora=True rank 4: cat 2.000, svd 2.000, linear 2.000
#   use_rslora=True rank 16: cat 4.000, svd 4.000, linear 4.000
#   init True: the base weight changes by 0.00 of its norm
#   init pissa: the base weight changes by 0.67 of its norm
#   init olora: the base weight changes by 0.56 of its norm
#
# The script ends with 1 if any of this changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 transformers==5.17.0 peft==0.21.2
"$folder/venv/bin/python" - <<'PYTHON'
import sys

import torch
from peft import LoraConfig, get_peft_model
from torch import nn


def ratio(rank, stabilized, combination):
    torch.manual_seed(0)
    config = LoraConfig(r=rank, lora_alpha=32, use_rslora=stabilized, target_modules=["0"], init_lora_weights=False)
    model = get_peft_model(nn.Sequential(nn.Linear(24, 24, bias=False)), config, adapter_name="one")
    model.add_weighted_adapter(["one"], [1.0], "combined", combination_type=combination)
    layer = model.base_model.model[0]
    return (layer.get_delta_weight("combined").norm() / layer.get_delta_weight("one").norm()).item()


as_described = []
for rank, stabilized in [(4, False), (4, True), (16, True)]:
    ratios = {combination: ratio(rank, stabilized, combination) for combination in ("cat", "svd", "linear")}
    print(f"use_rslora={stabilized} rank {rank}:", ", ".join(f"{name} {value:.3f}" for name, value in ratios.items()))
    expected = rank**0.5 if stabilized else 1.0
    as_described += [abs(value - expected) < 1e-3 for value in ratios.values()]
for method in (True, "pissa", "olora"):
    torch.manual_seed(0)
    config = LoraConfig(r=4, target_modules=["0"], init_lora_weights=method)
    model = get_peft_model(nn.Sequential(nn.Linear(24, 24, bias=False)), config, adapter_name="one")
    weight = model.base_model.model[0].base_layer.weight
    before = weight.clone()
    model.add_weighted_adapter(["one"], [1.0], "combined", combination_type="cat")
    change = ((weight - before).norm() / before.norm()).item()
    print(f"init {method}: the base weight changes by {change:.2f} of its norm")
    as_described.append((change > 0.1) == isinstance(method, str))
sys.exit(0 if all(as_described) else 1)
PYTHON
