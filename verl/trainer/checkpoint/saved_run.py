"""A run read from its checkpoint: configuration, placement and weights, without a trainer."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from verl.models.lora import peft_names
from verl.trainer.checkpoint.given_models import fingerprints, groups_with_fixed_models
from verl.trainer.checkpoint.store import CONFIG_FILE, POINTER, STATE_FILE, CheckpointStore, read_state
from verl.trainer.config import RunConfig
from verl.trainer.config.names import LORA_DEFAULTS
from verl.trainer.plan.command_line import load_config
from verl.trainer.plan.placement import Placement, WorkerGroupSpec, build_placement
from verl.utils.checkpoint import CheckpointError, stored_weights
from verl.utils.tracking.jsonl import read_steps


@dataclass(frozen=True)
class SavedRun:
    """One checkpoint and its run.

    Attributes:
        folder: `global_step_N`.
        step: N.
        config: configuration of the run.
        placement: placement of its agents.
        run_dir: output folder of the run; None if the checkpoint was moved out of it.
    """

    folder: Path
    step: int
    config: RunConfig
    placement: Placement
    run_dir: Path | None

    @classmethod
    def open(cls, path: str | Path) -> SavedRun:
        """Read the checkpoint at `path`: a folder `global_step_N`, or a run's folder, with its
        newest checkpoint.

        Raises:
            CheckpointError: there is none, its configuration cannot be read, or a frozen model that
                it needs has changed.
            PlacementError: a model that it needs is missing.
        """
        folder = find_saved(Path(path).expanduser().absolute())
        run_dir = folder.parent.parent if folder.parent.name == "checkpoints" else None
        places = [folder / CONFIG_FILE, *([run_dir / CONFIG_FILE] if run_dir is not None else [])]
        file = next((place for place in places if place.is_file()), None)
        if file is None:
            raise CheckpointError(
                f"{folder} has no {CONFIG_FILE}, and neither has the run around it; restore it "
                "from the run's folder"
            )
        try:
            config = load_config(file)
        except ValueError as error:
            raise CheckpointError(str(error)) from error
        config = _without_initial_adapters(config, json.loads((folder / STATE_FILE).read_text())["placement"])
        placement = build_placement(config.agent, config.actor_rollout_ref)
        state = read_state(folder, placement, None, fingerprints(groups_with_fixed_models(placement)))
        return cls(folder, int(state["global_step"]), config, placement, run_dir)

    def weights(
        self, spec: WorkerGroupSpec, adapter: str | None, limit_bytes: int
    ) -> Iterator[dict[str, torch.Tensor]]:
        """Yield the trained parameters of a policy, piece by piece: of an adapter by PEFT's names,
        of a model by its own names.

        Raises CheckpointError if they cannot be read.
        """
        for piece in stored_weights(self.folder / "actor" / spec.wg_id, limit_bytes):
            names = peft_names(piece, adapter) if adapter is not None else {key: key for key in piece}
            # A piece may hold tensors of other adapters alone.
            if names:
                yield {name: piece[key] for key, name in names.items()}

    def metrics(self) -> dict[str, float]:
        """Return the metrics of the checkpoint's step in `metrics.jsonl` of the run; {} if there is
        no such file.

        An incomplete last line of a killed run is ignored. Raises CheckpointError for any other
        invalid line.
        """
        file = self.run_dir / "metrics.jsonl" if self.run_dir is not None else None
        if file is None or not file.is_file():
            return {}
        try:
            lines = read_steps(file)
        except ValueError as error:
            raise CheckpointError(str(error)) from error
        step_metrics = {
            name: value
            for line in lines
            if line["step"] == self.step
            for name, value in line.items()
            if name != "step"
        }
        # null stands for a non-finite value
        return {name: value for name, value in step_metrics.items() if value is not None}


def _without_initial_adapters(config: RunConfig, rows: Sequence[Mapping[str, Any]]) -> RunConfig:
    """Return the configuration of a run with the shapes of its adapters instead of the folders from
    which they started.

    Args:
        config: is not changed.
        rows: `Placement.signature` of the run.
    """
    config = copy.deepcopy(config)
    model = config.actor_rollout_ref.model
    model_overrides = config.agent.agent_specific_parameters.get("model", {})
    if model.lora_adapter_path is None and "lora_adapter_path" not in model_overrides:
        return config
    model.lora_adapter_path = None
    model_overrides.pop("lora_adapter_path", None)
    shapes = {row["agent_id"]: row.get("lora", {}) for row in rows}
    model_overrides |= {
        name: [shapes.get(agent, {}).get(name) for agent in config.agent.agent_ids] for name in LORA_DEFAULTS
    }
    config.agent.agent_specific_parameters["model"] = model_overrides
    return config


def find_saved(path: Path) -> Path:
    """Return the checkpoint folder at `path`. Raises CheckpointError if there is none."""
    if (path / STATE_FILE).is_file():
        return path
    for root in (path / "checkpoints", path):
        if (root / POINTER).is_file():
            folder = CheckpointStore(root).latest()
            assert folder is not None
            return folder
    raise CheckpointError(
        f"no checkpoint at {path}; expected a folder global_step_N with {STATE_FILE}, or a run's "
        "folder with checkpoints/"
    )
