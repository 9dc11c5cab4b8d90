"""Whether the adapters of a base can run in one pass: a miniature of the model tells, as it does for
the layout of rows.

A layer in which the tokens of a pass cannot be found, because it is called with some of them or
with them in another order, would give a token the adapter of another one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from verl.models.fingerprint import once_per_configuration
from verl.models.lora import (
    LoraSpec,
    activate,
    adapter_layers,
    adapter_parameters,
    add_adapters,
)
from verl.models.miniature import miniature_model, one_thread
from verl.utils.names import error_line
from verl.workers.engine.forward import UseRuns, score_tokens
from verl.workers.engine.layout import RopeState, RowLayout, rope_limits
from verl.workers.engine.layout_check import FP32_BOUND, attention_name, rows_to_check
from verl.workers.engine.mixed_adapters import MixedAdapters

# Two ranks, on all layers that can have an adapter.
SPECS = {"a": LoraSpec(2, 4), "b": LoraSpec(3, 3)}


@once_per_configuration
@one_thread()
def mixing_problem(config: Any, layout: RowLayout) -> str:
    """Return why adapters of a model must run one after the other, empty if they need not: log-probs
    of rows that run together differ from those of each adapter alone.

    Args:
        config: of the model; a miniature of it is run on the CPU.
        layout: of the rows. Its attention does not matter here, only the order of its tokens.
    """
    form = replace(layout, attention="sdpa") if layout.packed else replace(layout, attention="eager")
    try:
        difference = _difference(config, form)
    except Exception as error:  # code of a model may raise anything
        return error_line(error, typed=True, most=200)
    if not difference <= FP32_BOUND:
        return f"log-probs differ by up to {difference:.2g} from those of each adapter alone"
    return ""


def _difference(config: Any, layout: RowLayout) -> float:
    """Return the largest difference of log-probs between rows run together and each adapter alone."""
    model = miniature_model(config, attention=attention_name(layout))
    add_adapters(model, SPECS, None, seed=0)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name in SPECS:
            for value in adapter_parameters(model, name).values():
                value.copy_(torch.randn(value.shape, generator=generator) * 0.1)
    text = model.config.get_text_config()
    rows = dict(rows_to_check(min(256, int(text.vocab_size))))
    rows["part"] = torch.arange(len(rows["input_ids"])) % len(SPECS)
    limits = rope_limits(text) if layout.limits else ()
    groups = replace(layout, limits=limits).groups(rows["attention_mask"].sum(dim=1).tolist())
    layers = adapter_layers(model)
    adapters = MixedAdapters(layers)
    ropes = RopeState(model)
    largest = 0.0
    for group in groups:
        of_group = {key: value[group] for key, value in rows.items()}
        activate(layers, None)
        with adapters.of(list(SPECS)):
            together = _log_probs(model, of_group, layout, ropes, adapters.use)
        for part, name in enumerate(SPECS):
            activate(layers, name)
            gap = (together - _log_probs(model, of_group, layout, ropes, None)).abs()
            # NaN is kept by `max` of a tensor, and not by that of numbers.
            largest = float(torch.tensor([largest, *gap[of_group["part"] == part].flatten()]).max())
    return largest


@torch.no_grad()
def _log_probs(
    model: Any,
    rows: Mapping[str, torch.Tensor],
    layout: RowLayout,
    ropes: RopeState,
    use_runs: UseRuns | None,
) -> torch.Tensor:
    ropes.reset()
    return score_tokens(model, rows, 1.0, layout, use_runs=use_runs).log_probs
