"""Load a Hugging Face causal language model and its tokenizer, with errors that explain what is
wrong with the path.
"""

from __future__ import annotations

import functools
import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from verl.models.tokenizer_check import checked_tokenizer
from verl.protocol.turns import turn_end_ids

logger = logging.getLogger(__name__)

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
# Of configurations that were read with the permission to run the code that is shipped with them.
_TRUSTED: set[str] = set()
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")


class ModelPathError(FileNotFoundError):
    """A model path that is neither a folder with a model nor a hub id that can be loaded."""


def check_model_path(path: str | None) -> str:
    """Return `path`, with `~` expanded, if it can name a model; without heavy imports or network
    access.

    A path is a folder with a `config.json`, or a hub id (`name` or `owner/name`), whose existence
    is not checked.

    Raises:
        ModelPathError: empty, a folder without `config.json`, or neither a folder nor of the form
            of a hub id.
    """
    if not path:
        raise ModelPathError(
            "no model path given; set actor_rollout_ref.model.path or agent.model_ids to a folder or a hub id"
        )
    folder = Path(path).expanduser()
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise ModelPathError(
                f"model folder {path!r} has no config.json; expected a Hugging Face model folder"
            )
        return str(folder)
    if folder.exists():
        raise ModelPathError(
            f"model path {path!r} is a file; expected a Hugging Face model folder or a hub id"
        )
    if path.startswith((".", "~", os.sep)) or not _HUB_ID.fullmatch(path):
        raise ModelPathError(
            f"model path {path!r} does not exist; give an existing folder or a hub id such as Qwen/Qwen3-4B"
        )
    return path


def resolve_dtype(name: str, device: str) -> torch.dtype:
    """Return the dtype of a name; `auto` is bf16 on a GPU and fp32 on a CPU. Raises ValueError for
    an unknown name.
    """
    if name == "auto":
        return torch.bfloat16 if device == "cuda" else torch.float32
    if name not in DTYPES:
        raise ValueError(f"dtype {name!r}: expected auto or one of {tuple(DTYPES)}")
    return DTYPES[name]


def is_flash_attention_usable(device: str, dtype: torch.dtype) -> bool:
    """Return whether flash-attn is installed and can run: on a GPU, in bf16."""
    from transformers.utils import is_flash_attn_2_available

    return (device, dtype) == ("cuda", torch.bfloat16) and is_flash_attn_2_available()


@contextmanager
def without_progress_bars() -> Iterator[None]:
    """Disable transformers' progress bars inside the block, for local files, which take too little
    time to need one.
    """
    from transformers.utils import logging as transformers_logging

    bars_enabled = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        if bars_enabled:
            transformers_logging.enable_progress_bar()


@contextmanager
def reading_model(path: str) -> Iterator[None]:
    """Show progress bars for downloads only, and raise ModelPathError with the path for errors
    about the files of a model.

    Of any kind: OSError for files that are missing, ValueError for model types that transformers does
    not have, AssertionError for a padding token beyond the vocabulary, errors of classes of its own
    for fields that contradict each other.
    """
    try:
        with without_progress_bars() if Path(path).is_dir() else nullcontext():
            yield
    except ModelPathError:
        raise
    except Exception as error:
        # transformers, safetensors, and code of any model
        advice = (
            "; it ships code of its own: actor_rollout_ref.model.trust_remote_code=true runs it"
            if _is_own_code(error)
            else ""
        )
        raise ModelPathError(f"model {path!r} cannot be loaded: {_first_line(error)}{advice}") from error


def _is_own_code(error: Exception) -> bool:
    """Return whether transformers asks for permission to run code that is shipped with a model."""
    return "trust_remote_code" in str(error)


def load_config(path: str | None, *, trust_remote_code: bool = False) -> Any:
    """Return the configuration of the model at a path. Raises ModelPathError if there is none, or
    transformers cannot read it.
    """
    path = check_model_path(path)
    try:
        content = (Path(path) / "config.json").read_bytes()
    except OSError:  # of a hub id, or one that transformers names
        return _read_config(path, trust_remote_code)
    if trust_remote_code:  # its code may change
        return _read_config(path, trust_remote_code)
    return deepcopy(_config_of(path, content))


@functools.lru_cache(maxsize=16)
def _config_of(path: str, content: bytes) -> Any:
    """Return the configuration of a folder whose config.json has this content: a run asks for it a
    dozen times, and transformers takes milliseconds.
    """
    return _read_config(path, trust_remote_code=False)


def _read_config(path: str, trust_remote_code: bool) -> Any:
    from transformers import AutoConfig

    with reading_model(path):
        config = AutoConfig.from_pretrained(path, trust_remote_code=trust_remote_code)
    if trust_remote_code:
        _TRUSTED.add(config._name_or_path)
    return config


def own_code_options(config: Any, model_class: str = "AutoModelForCausalLM") -> dict[str, bool]:
    """Return the arguments by which transformers makes a model with the code that is shipped with a
    configuration, if the run allows that; none for transformers' own classes.

    Also configurations of transformers may come with a model class of their own: a check of
    transformers' class would say nothing of it.
    """
    if type(config).__module__.startswith("transformers_modules"):
        return {"trust_remote_code": True}
    is_allowed = getattr(config, "_name_or_path", "") in _TRUSTED
    is_there = model_class in (getattr(config, "auto_map", None) or {})
    return {"trust_remote_code": True} if is_allowed and is_there else {}


def check_causal_lm(path: str | None, *, trust_remote_code: bool = False) -> Any:
    """Return the configuration of a model that transformers loads as a causal language model.

    Raises:
        ModelPathError: as `load_config`, or transformers loads the model by another class only.
    """
    config = load_config(path, trust_remote_code=trust_remote_code)
    from transformers import AutoModelForCausalLM

    own_code = "AutoModelForCausalLM" in (getattr(config, "auto_map", None) or {})
    if not own_code and type(config) not in AutoModelForCausalLM._model_mapping:
        text = config.get_text_config()
        is_part = text is not config and type(text) in AutoModelForCausalLM._model_mapping
        advice = (
            f"its text part, of type {text.model_type!r}, is one: save that alone (its config.json "
            "and weights) and give that folder"
            if is_part
            else "choose a model of another type"
        )
        raise ModelPathError(
            f"model {path!r} has type {config.model_type!r}, which transformers does not load as a "
            f"causal language model; {advice}"
        )
    return config


def persistent_buffers(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return the buffers that a checkpoint of the model holds, by name: correction biases of
    routers, for example.
    """
    return {
        f"{prefix}.{name}" if prefix else name: buffer
        for prefix, module in model.named_modules()
        for name, buffer in module.named_buffers(recurse=False)
        if name not in module._non_persistent_buffers_set
    }


@dataclass(frozen=True)
class ModelLoader:
    """The functions by which the ranks of a training engine make one kind of model.

    Attributes:
        load: returns the model with its weights,
            `load(path, dtype=, attn_implementation=, trust_remote_code=)`.
        build: returns the same model without weights.
    """

    load: Callable[..., Any]
    build: Callable[..., Any]


def load_causal_lm(
    path: str, *, dtype: torch.dtype, attn_implementation: str | None, trust_remote_code: bool = False
) -> Any:
    """Load a causal language model with real (not meta) tensors on the CPU, in `eval` mode.

    A model made on the meta device would lose buffers that no checkpoint holds, such as the rotary
    frequencies.

    Raises:
        ModelPathError: the path is no model, or the hub id cannot be loaded.
    """
    config = check_causal_lm(path, trust_remote_code=trust_remote_code)
    path = check_model_path(path)
    from transformers import AutoModelForCausalLM

    with reading_model(path):
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            path,
            config=config,
            dtype=dtype,
            attn_implementation=attn_implementation,
            trust_remote_code=trust_remote_code,
            output_loading_info=True,
        )
    model = loaded[0]
    check_missing(path, loaded[1]["missing_keys"])
    check_finite(path, model)
    return model.eval()


def check_missing(path: str, missing: Iterable[str]) -> None:
    """Raise ModelPathError if tensors of a model are in none of its files, so that transformers
    would draw them at random.
    """
    names = sorted(missing)
    if names:
        raise ModelPathError(
            f"the files of model {path!r} lack {count_of(names)} that its config.json "
            f"asks for, such as {names[0]}; complete the folder, or correct config.json"
        )


def check_finite(path: str, model: torch.nn.Module) -> None:
    """Raise ModelPathError if a tensor of a loaded model is not finite."""
    for name, tensor in model.named_parameters():
        # A sum is fast, and not finite if a number is not; one that overflows is looked at number
        # by number.
        if not bool(torch.isfinite(tensor.detach().sum(dtype=torch.float32))) and not bool(
            torch.isfinite(tensor).all()
        ):
            raise ModelPathError(
                f"model {path!r} is damaged: {name} holds numbers that are not finite; copy its files again"
            )


def count_of(tensors: Sequence[Any]) -> str:
    """Return a number of tensors in words: `1 tensor`, `3 tensors`."""
    return f"{len(tensors)} tensor{'' if len(tensors) == 1 else 's'}"


def build_causal_lm(
    path: str, *, dtype: torch.dtype, attn_implementation: str, trust_remote_code: bool = False
) -> Any:
    """Return the model of `load_causal_lm` without its weights: parameters are uninitialised,
    untouched memory, buffers are correct.

    Raises ModelPathError as `load_causal_lm` does.
    """
    config = check_causal_lm(path, trust_remote_code=trust_remote_code)
    from transformers import AutoModelForCausalLM
    from transformers.initialization import no_init_weights

    with reading_model(str(path)), no_init_weights():
        model = AutoModelForCausalLM.from_config(
            config, dtype=dtype, attn_implementation=attn_implementation, trust_remote_code=trust_remote_code
        )
    model.tie_weights()
    return model.eval()


CAUSAL_LM = ModelLoader(load_causal_lm, build_causal_lm)


def load_tokenizer(path: str, *, trust_remote_code: bool = False) -> Any:
    """Load the tokenizer of a model folder or hub id; a missing pad token becomes the end-of-text
    token.

    Raises:
        ModelPathError: the path is no model, or has no tokenizer.
    """
    path = check_model_path(path)
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=trust_remote_code)
    except (OSError, ValueError) as error:
        if not Path(path).is_dir():
            raise ModelPathError(
                f"{path!r} is neither an existing folder nor a model of the hub that can be "
                f"loaded: {_first_line(error)}"
            ) from error
        raise ModelPathError(
            f"no tokenizer can be loaded from {path!r}: {_first_line(error)}; set "
            "actor_rollout_ref.model.tokenizer_path"
        ) from error
    # Without files transformers makes a tokenizer of special tokens alone.
    if set(tokenizer.get_vocab()) <= {*tokenizer.all_special_tokens, *tokenizer.get_added_vocab()}:
        raise ModelPathError(f"{path!r} has no tokenizer files; set actor_rollout_ref.model.tokenizer_path")
    try:
        tokenizer = checked_tokenizer(tokenizer, path)
    except ValueError as error:
        raise ModelPathError(str(error)) from error
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


class NoTokenizer:
    """Placeholder for a tokenizer that cannot be loaded, used when weights are saved."""

    def save_pretrained(self, folder: str | Path) -> None:
        """Write nothing."""


def tokenizer_to_save(path: str, *, trust_remote_code: bool = False, warn: bool = True) -> Any:
    """Return the tokenizer to save with weights; if it cannot be loaded, log a warning and return
    `NoTokenizer`, so that weights are saved in any case.
    """
    try:
        return load_tokenizer(path, trust_remote_code=trust_remote_code)
    except Exception as error:
        # its files or its own code may raise anything
        if warn:
            logger.warning(
                "weights are saved without a tokenizer, which cannot be loaded from %r: %s",
                path,
                _first_line(error),
            )
        return NoTokenizer()


def check_vocabulary(tokenizer: Any, source: str, path: str, *, trust_remote_code: bool = False) -> None:
    """Raise ModelPathError when `tokenizer`, loaded from `source`, has tokens that the model at
    `path` has no embedding for; only the model's configuration is read.
    """
    config = load_config(path, trust_remote_code=trust_remote_code)
    size = getattr(config.get_text_config(), "vocab_size", None)
    highest = max(tokenizer.get_vocab().values())
    if size is not None and highest >= size:
        raise ModelPathError(
            f"the tokenizer of {source!r} has token ids up to {highest}, the model {path!r} has "
            f"{size} embeddings; set actor_rollout_ref.model.tokenizer_path to the model's own "
            "tokenizer, or leave it out"
        )


def stop_token_ids(
    path: str, tokenizer: Any, template_kwargs: Mapping[str, Any] | None = None
) -> tuple[int, ...]:
    """Return the ids of the tokens that end a reply, sorted: the tokenizer's end token, those of
    the model's `generation_config.json` if it exists (a chat model may end turns and texts with
    different tokens), and those that the chat template puts after a reply.

    Args:
        path: of the model.
        tokenizer: its tokenizer.
        template_kwargs: more arguments of the chat template.

    Raises ModelPathError when the path cannot name a model, or its `generation_config.json` exists
    and cannot be read.
    """
    from transformers import GenerationConfig

    path = check_model_path(path)
    try:
        listed = GenerationConfig.from_pretrained(path).eos_token_id
    except (OSError, ValueError) as error:
        if (file := Path(path) / "generation_config.json").is_file():
            raise ModelPathError(
                f"{file} cannot be read: {_first_line(error)}; it holds the tokens that end a reply"
            ) from error
        listed = None
    ends = {
        tokenizer.eos_token_id,
        *(listed if isinstance(listed, list) else [listed]),
        *turn_end_ids(tokenizer, template_kwargs),
    }
    ends.add(tokenizer.get_vocab().get("<|im_end|>"))
    return tuple(sorted(ends - {None}))


def _first_line(error: Exception) -> str:
    """Return the first line of an error, with the next one if it is only its heading; the others are
    advice for users of that library.
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    return " ".join(lines[:2]) if lines[0].endswith(":") else lines[0]
