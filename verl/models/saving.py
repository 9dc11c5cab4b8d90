"""Models written in transformers' format, with the settings of `generate` that a run trains for."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch

from verl.models.loader import NoTokenizer
from verl.protocol.turns import turn_end_ids


def add_turn_ends(model: Any, tokenizer: Any, template_kwargs: Mapping[str, Any] | None = None) -> None:
    """Add the tokens that end a turn to the model's `generation_config`, so that its saved copy
    stops where the trained one did.

    A model without one, such as a classifier, and one that is saved without a tokenizer stay as
    they are.

    Args:
        model: the model.
        tokenizer: its tokenizer.
        template_kwargs: more arguments of the chat template.
    """
    config = getattr(model, "generation_config", None)
    if config is None or isinstance(tokenizer, NoTokenizer):
        return
    listed = config.eos_token_id
    ends = {
        tokenizer.eos_token_id,
        *(listed if isinstance(listed, list) else [listed]),
        *turn_end_ids(tokenizer, template_kwargs),
    }
    ends -= {None}
    if ends:
        config.eos_token_id = sorted(ends)


def save_turn_ends(model: Any, tokenizer: Any, folder: str | Path) -> None:
    """Write the `generation_config.json` of an adapter, with the tokens that end a turn; see
    `add_turn_ends`.
    """
    add_turn_ends(model, tokenizer)
    if getattr(model, "generation_config", None) is not None:
        _write_generation(model.generation_config, folder)


def save_language_model(
    model: Any, folder: str | Path, tensors: Mapping[str, torch.Tensor] | None = None
) -> None:
    """Write a model in transformers' format, with the settings of `generate` that it was read with.

    transformers reads fields and settings that it refuses to write, such as a temperature without
    sampling: a run must not end at its first checkpoint because of them.

    Args:
        model: the model.
        folder: created if it does not exist.
        tensors: by name; None for the model's own.

    Raises whatever transformers raises for files that cannot be written.
    """
    settings = getattr(model, "generation_config", None)
    config = model.config
    # Its own attention is no part of what is written, and some fields forbid all but the eager one.
    model.config = deepcopy(config)
    model.config._attn_implementation = "eager"
    if settings is not None:
        model.generation_config = type(settings)()
    try:
        model.save_pretrained(folder, state_dict=tensors)
    finally:
        model.config = config
        model.generation_config = settings
    if settings is not None:
        _write_generation(settings, folder)


def _write_generation(settings: Any, folder: str | Path) -> None:
    # without the check of `save_pretrained`
    settings.to_json_file(
        Path(folder) / "generation_config.json", use_diff=True, keys_to_pop=["compile_config"]
    )


def read_generation(model: Any, path: str) -> None:
    """Give a model that was built from a configuration the settings of `generate` in the files of
    its path, if there are any, as loading it would.
    """
    from transformers import GenerationConfig

    if getattr(model, "generation_config", None) is None:
        return
    # of the path without a file
    with suppress(OSError):
        model.generation_config = GenerationConfig.from_pretrained(path)
