"""Saving an engine's state to a checkpoint, and restoring it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from verl.models.loader import without_progress_bars
from verl.models.lora import save_adapter
from verl.models.saving import add_turn_ends, save_language_model, save_turn_ends
from verl.utils.checkpoint import CheckpointError, load_sharded, read_meta, save_sharded
from verl.workers.engine.fsdp_engine import FSDPEngine
from verl.workers.engine.trainable import Trainable

HF_FOLDER = "huggingface"


def save_engine(engine: FSDPEngine, path: str | Path, tokenizer: Any | None) -> None:
    """Write trained parameters, optimizer state, schedule, and the random state; with a tokenizer
    also `huggingface/`.

    `huggingface/` is the model for plain transformers; for adapters, whose base is unchanged, one
    folder each for plain PEFT.

    Raises:
        CheckpointError: it could not be written; an older checkpoint at `path` is intact.
    """

    def write_more(folder: Path) -> None:
        if engine.adapters:
            write_adapters(engine, folder / HF_FOLDER, tokenizer)
        else:
            write_hugging_face(engine, folder / HF_FOLDER, tokenizer)

    with engine.loaded(), engine.optimizers_loaded(engine.trainables):
        meta: dict[str, Any] = {"model": _shapes(engine)}
        if engine.adapters:
            meta["adapters"] = {name: _progress(adapter) for name, adapter in engine.adapters.items()}
        else:
            meta |= _progress(engine.trainable)
        save_sharded(
            path,
            _tensors(engine),
            _random_state(engine),
            meta,
            engine.group,
            None if tokenizer is None else write_more,
        )


def load_engine(engine: FSDPEngine, path: str | Path) -> None:
    """Restore an engine from a checkpoint; exact to the last bit if it was written by as many
    ranks.

    Raises:
        CheckpointError: there is none, or it is of another model or of other adapters.
    """
    meta = read_meta(path)
    stored_shapes = meta["model"]
    expected = _shapes(engine)
    if stored_shapes != expected:
        odd = sorted(
            set(stored_shapes.items() if isinstance(stored_shapes, dict) else ()) ^ set(expected.items())
        )
        of = f"the adapters {sorted(meta['adapters'])}" if "adapters" in meta else "another model"
        raise CheckpointError(f"checkpoint {path} is of {of}; first differing parameters: {odd[:4]}")
    with engine.loaded(), engine.optimizers_loaded(engine.trainables):
        rng_state = load_sharded(path, _tensors(engine), engine.group)
    progress = [meta["adapters"][name] for name in engine.adapters] if engine.adapters else [meta]
    for trainable, at in zip(engine.trainables, progress, strict=True):
        trainable.steps = at["steps"]
        # A number of steps that this run has set counts, not that of the checkpoint.
        if trainable.schedule.total_steps < 0 < at["total_steps"]:
            trainable.set_total_steps(at["total_steps"])
    # Empty if another number of ranks has written the checkpoint.
    if rng_state:
        torch.set_rng_state(rng_state["rng"])
        if engine.device.type == "cuda":
            torch.cuda.set_rng_state(rng_state["cuda_rng"])


def write_adapters(engine: FSDPEngine, folder: Path, tokenizer: Any) -> None:
    """Gather every adapter on rank 0 and write it to a folder of its name in PEFT's format; all
    ranks must call this together.

    Raises:
        OSError: on rank 0, when a file cannot be written.
    """
    for name in engine.adapters:
        whole = {key: value.to("cpu", copy=True) for key, value in engine.weights(name)}
        if engine.mesh.get_rank() == 0:
            with _as_os_error(f"adapter '{name}'"):
                save_adapter(engine.model, name, whole, folder / name)
                tokenizer.save_pretrained(folder / name)
                save_turn_ends(engine.model, tokenizer, folder / name)


def write_hugging_face(engine: FSDPEngine, folder: Path, tokenizer: Any) -> None:
    """Gather the model on rank 0 and write it in transformers' format; all ranks must call this
    together.

    Raises:
        OSError: on rank 0, when a file cannot be written.
    """
    rank = engine.mesh.get_rank()
    whole: dict[str, torch.Tensor] = {}
    for name, value in engine.weights():
        if rank == 0:
            whole[name] = value.to("cpu", copy=True)
    if rank != 0:
        return
    with _as_os_error("the Hugging Face copy"), without_progress_bars():
        tokenizer.save_pretrained(folder)
        add_turn_ends(engine.model, tokenizer)
        save_language_model(engine.model, folder, whole)


@contextmanager
def _as_os_error(what: str) -> Iterator[None]:
    """Raise OSError for a failed write: tokenizers raises a bare Exception, safetensors an error
    class of its own.
    """
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        raise OSError(f"{what} could not be written: {error}") from error


def _trained(engine: FSDPEngine) -> Iterator[tuple[str, torch.nn.Parameter, Trainable]]:
    """Yield (name, parameter, its trainable) of all parameters in a checkpoint, which excludes the
    frozen base of adapters.
    """
    for trainable in engine.trainables:
        parameter_ids = {id(parameter) for parameter in trainable.parameters.values()}
        yield from (
            (name, parameter, trainable)
            for name, parameter in engine.model.named_parameters()
            if id(parameter) in parameter_ids
        )


def _tensors(engine: FSDPEngine) -> dict[str, torch.Tensor]:
    result: dict[str, torch.Tensor] = {}
    for name, parameter, trainable in _trained(engine):
        result[f"model.{name}"] = parameter.detach()
        for part, value in trainable.optimizer.state[parameter].items():
            result[f"optimizer.{name}.{part}"] = value
    for name, buffer in _buffers(engine).items():
        result[f"model.{name}"] = buffer
    return result


def _buffers(engine: FSDPEngine) -> dict[str, torch.Tensor]:
    """Return the buffers of a trained model, without which its checkpoint is not complete; those of
    a frozen base are not in it.
    """
    return {} if engine.adapters else engine.buffers


def _shapes(engine: FSDPEngine) -> dict[str, str]:
    shapes = {name: f"{tuple(p.shape)} {p.dtype}" for name, p, _ in _trained(engine)}
    return shapes | {
        name: f"{tuple(buffer.shape)} {buffer.dtype}" for name, buffer in _buffers(engine).items()
    }


def _progress(trainable: Trainable) -> dict[str, int]:
    return {"steps": trainable.steps, "total_steps": trainable.schedule.total_steps}


def _random_state(engine: FSDPEngine) -> dict[str, torch.Tensor]:
    state = {"rng": torch.get_rng_state()}
    return state | {"cuda_rng": torch.cuda.get_rng_state()} if engine.device.type == "cuda" else state
