"""Export of a checkpoint to folders that transformers and peft load, one per policy, with a model
card.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import torch

from verl.models.loader import build_causal_lm, tokenizer_to_save, without_progress_bars
from verl.models.lora import lora_spec, peft_config, write_adapter
from verl.models.saving import add_turn_ends, read_generation, save_language_model, save_turn_ends
from verl.trainer.checkpoint.model_card import policy_card, team_card
from verl.trainer.checkpoint.saved_run import SavedRun
from verl.trainer.plan.placement import WorkerGroupSpec
from verl.workers.engine.state import HF_FOLDER

PIECE_BYTES = 1 << 30


class ExportError(ValueError):
    """Invalid output folder."""


def export(checkpoint: str | Path, out: str | Path) -> list[Path]:
    """Write every trained policy of a checkpoint to `out/<policy_id>/`, and `out/README.md` about
    the team. Return the policies' folders.

    `out` appears atomically after everything is written.

    Raises:
        ExportError: `out` exists and is not empty.
        CheckpointError, PlacementError: as `SavedRun.open`.
        OSError: a file cannot be written.
    """
    target = Path(out).expanduser().absolute()
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ExportError(f"--out {target} exists and is not empty; name a new folder")
    saved = SavedRun.open(checkpoint)
    aside = target.with_name(f".{target.name}.tmp")
    shutil.rmtree(aside, ignore_errors=True)
    try:
        metrics = saved.metrics()
        for spec in saved.placement.groups:
            for policy in spec.policies:
                write_policy(saved, spec, policy if policy in spec.adapters else None, aside / policy)
                (aside / policy / "README.md").write_text(policy_card(saved, spec, policy, metrics))
        aside.mkdir(parents=True, exist_ok=True)
        (aside / "README.md").write_text(team_card(saved, metrics))
        if target.exists():
            target.rmdir()
        aside.rename(target)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return [target / policy for policy in saved.placement.policy_ids]


def write_policy(saved: SavedRun, spec: WorkerGroupSpec, adapter: str | None, folder: Path) -> None:
    """Write one policy with its tokenizer: the copy in the checkpoint (`trainer.save_hf_model`), or
    one built from its parameters.
    """
    copy = saved.folder / "actor" / spec.wg_id / HF_FOLDER / (adapter or "")
    if (copy / ("adapter_config.json" if adapter else "config.json")).is_file():
        shutil.copytree(copy, folder)
        return
    with without_progress_bars():
        model = spec.config.model
        tokenizer = tokenizer_to_save(
            model.tokenizer_path or spec.model_path, trust_remote_code=model.trust_remote_code
        )
        if adapter is None:
            _write_model(saved, spec, folder, tokenizer)
        else:
            _write_adapter(saved, spec, adapter, folder, tokenizer)
        tokenizer.save_pretrained(folder)


def _write_model(saved: SavedRun, spec: WorkerGroupSpec, folder: Path, tokenizer: Any) -> None:
    whole = {name: value for piece in saved.weights(spec, None, PIECE_BYTES) for name, value in piece.items()}
    dtype = next(iter(whole.values())).dtype
    with torch.device("meta"):
        model = _build(spec, dtype)
    add_turn_ends(model, tokenizer)
    save_language_model(model, folder, whole)


def _write_adapter(
    saved: SavedRun, spec: WorkerGroupSpec, adapter: str, folder: Path, tokenizer: Any
) -> None:
    with torch.device("meta"):
        base = _build(spec, torch.float32)
    config = peft_config(base, lora_spec(spec.adapters[adapter].model), spec.model_path)
    tensors = {
        name: value for piece in saved.weights(spec, adapter, PIECE_BYTES) for name, value in piece.items()
    }
    write_adapter(config, tensors, folder)
    save_turn_ends(base, tokenizer, folder)


def _build(spec: WorkerGroupSpec, dtype: torch.dtype) -> Any:
    model = build_causal_lm(
        spec.model_path,
        dtype=dtype,
        attn_implementation="eager",
        trust_remote_code=spec.config.model.trust_remote_code,
    )
    read_generation(model, spec.model_path)
    return model
