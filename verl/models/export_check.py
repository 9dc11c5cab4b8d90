"""Whether plain transformers reads back the model that an export wrote, found on a miniature."""

from __future__ import annotations

import tempfile
from typing import Any

import torch

from verl.models.fingerprint import once_per_configuration
from verl.models.loader import (
    ModelPathError,
    own_code_options,
    persistent_buffers,
    without_progress_bars,
)
from verl.models.miniature import MiniatureError, miniature_model, one_thread
from verl.models.saving import save_language_model
from verl.utils.names import error_line

TOKENS = 24
# the same tensors in the same code give the same bits; a buffer that is computed anew may round
BOUND = 1e-4
LONGEST_REASON = 200
WITH_ADAPTERS = "train it with adapters (agent.specialization=lora), which are exported apart from the base"


@once_per_configuration
@one_thread()
def export_difference(config: Any) -> float:
    """Export a miniature of a model, reload it by transformers, and return the largest difference
    of its log-probs, in nats.

    NaN if no miniature can be built.

    Raises:
        ModelPathError: the export cannot be read, lacks tensors, has others, or holds or gives
            other numbers.
    """
    try:
        model = miniature_model(config, attention="eager")
    except MiniatureError:
        return float("nan")
    from transformers import AutoModelForCausalLM

    whole = tensors_of(model)
    with tempfile.TemporaryDirectory() as folder, without_progress_bars():
        save_language_model(model, folder, {name: value.clone() for name, value in whole.items()})
        try:
            loaded: Any = AutoModelForCausalLM.from_pretrained(
                folder,
                dtype=torch.float32,
                attn_implementation="eager",
                output_loading_info=True,
                **own_code_options(config),
            )
        except Exception as error:  # code of a model may raise anything
            reason = error_line(error, most=LONGEST_REASON)
            raise ModelPathError(
                f"transformers does not read back an export of {config.model_type} ({reason}); "
                f"{WITH_ADAPTERS}"
            ) from error
    reloaded = tensors_of(loaded[0].eval())
    wrong = {
        name
        for name, value in whole.items()
        if name not in reloaded or not torch.equal(value, reloaded[name])
    }
    wrong |= set(loaded[1]["missing_keys"]) | set(loaded[1]["unexpected_keys"])
    if wrong:
        raise ModelPathError(
            f"an export of {config.model_type} is not what transformers reads back: "
            f"{sorted(wrong)[:3]} differ ({len(wrong)} in all); {WITH_ADAPTERS}"
        )
    ids = torch.arange(3, 3 + TOKENS)[None]
    with torch.no_grad():
        before, after = (
            network(input_ids=ids, use_cache=False).logits.log_softmax(-1) for network in (model, loaded[0])
        )
    difference = float((before - after).abs().max())
    if not difference < BOUND:
        raise ModelPathError(
            f"an export of {config.model_type} has equal tensors, but its log-probs differ by "
            f"{difference:.2g} after transformers has read it back; {WITH_ADAPTERS}"
        )
    return difference


def tensors_of(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return the tensors that a checkpoint of a model must hold, by name: parameters, tied ones
    once, and persistent buffers.
    """
    return {name: value.detach() for name, value in model.named_parameters()} | persistent_buffers(model)
