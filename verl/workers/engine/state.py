"""What of an engine goes into a checkpoint, and how it comes back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from verl.models.loader import without_progress_bars
from verl.utils.checkpoint import CheckpointError, load_sharded, read_meta, save_sharded
from verl.workers.engine.fsdp_engine import FSDPEngine

HF_FOLDER = "huggingface"


def save_engine(engine: FSDPEngine, path: str | Path, tokenizer: Any | None) -> None:
    """Write parameters, optimizer state, schedule and random state; with a tokenizer also a Hugging Face copy in `huggingface/`.

    Raises:
        CheckpointError: it could not be written; an older checkpoint at `path` is still whole.
    """

    def write_hf(folder: Path) -> None:
        write_hugging_face(engine, folder / HF_FOLDER, tokenizer)

    with engine.training():
        meta = {"model": _shapes(engine), "steps": engine.steps, "total_steps": engine.schedule.total_steps if engine.schedule else -1}
        more = None if tokenizer is None else write_hf
        save_sharded(path, _tensors(engine), _random_state(engine), meta, engine.group, more)


def load_engine(engine: FSDPEngine, path: str | Path) -> None:
    """Continue from a checkpoint: to the last bit, when it was written by as many ranks.

    Raises:
        CheckpointError: there is none, or it is of another model.
    """
    meta = read_meta(path)
    found, expected = meta["model"], _shapes(engine)
    if found != expected:
        odd = sorted(set(found.items() if isinstance(found, dict) else ()) ^ set(expected.items()))
        raise CheckpointError(f"checkpoint {path} is of another model; first differing parameters: {odd[:4]}")
    with engine.training():
        own = load_sharded(path, _tensors(engine), engine.group)
    engine.steps = meta["steps"]
    if engine.schedule is not None and engine.schedule.total_steps < 0 < meta["total_steps"]:
        engine.set_total_steps(meta["total_steps"])
    if own:
        torch.set_rng_state(own["rng"])
        if engine.device.type == "cuda":
            torch.cuda.set_rng_state(own["cuda_rng"])


def write_hugging_face(engine: FSDPEngine, folder: Path, tokenizer: Any) -> None:
    """Gather the model on rank 0 and write it as plain transformers loads it; all ranks call this together.

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
    try:
        tokenizer.save_pretrained(folder)
        with without_progress_bars():
            engine.model.save_pretrained(folder, state_dict=whole)
    except OSError:
        raise
    except Exception as error:  # tokenizers raises a bare Exception for a failed write, safetensors one of its own
        raise OSError(f"the Hugging Face copy could not be written: {error}") from error


def _tensors(engine: FSDPEngine) -> dict[str, torch.Tensor]:
    result: dict[str, torch.Tensor] = {}
    for name, parameter in engine.model.named_parameters():
        result[f"model.{name}"] = parameter.detach()
        if engine.optimizer is not None and parameter in engine.optimizer.state:
            for part, value in engine.optimizer.state[parameter].items():
                result[f"optimizer.{name}.{part}"] = value
    return result


def _shapes(engine: FSDPEngine) -> dict[str, str]:
    return {name: f"{tuple(p.shape)} {p.dtype}" for name, p in engine.model.named_parameters()}


def _random_state(engine: FSDPEngine) -> dict[str, torch.Tensor]:
    state = {"rng": torch.get_rng_state()}
    return state | {"cuda_rng": torch.cuda.get_rng_state()} if engine.device.type == "cuda" else state
