"""Checkpoints of a run: folders, atomic writes, and the one that a run continues from."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from verl.trainer.config import TrainerConfig
from verl.trainer.config.run import EXPECTED_MODE
from verl.trainer.plan.placement import Placement
from verl.utils.checkpoint import CheckpointError, fsync_tree
from verl.utils.disk import write_whole

POINTER = "latest_checkpointed_iteration.txt"
STATE_FILE = "trainer_state.json"
CONFIG_FILE = "config.yaml"
PLAN_FILE = "plan.json"
# Folders of what `TeamWorkers.save_checkpoint` writes.
MODELS = ("actor", "critic")


@dataclass(frozen=True)
class CheckpointStore:
    """The folder `checkpoints/` of a run: `global_step_N/` folders and a pointer to the newest
    complete one.
    """

    root: Path

    def path(self, step: int) -> Path:
        """Return the folder of one step."""
        return self.root / f"global_step_{step}"

    def latest(self) -> Path | None:
        """Return the folder that the pointer names, or None if there is no checkpoint yet.

        Raises CheckpointError if that folder is missing.
        """
        pointer = self.root / POINTER
        if not pointer.is_file():
            return None
        folder = self.path(step := int(pointer.read_text().strip()))
        # the process was killed while it replaced the folder
        if not folder.exists() and self._replaced(step).is_dir():
            self._replaced(step).rename(folder)
        if not (folder / STATE_FILE).is_file():
            raise CheckpointError(
                f"{pointer} names {folder.name}, which has no {STATE_FILE}; restore it or correct the pointer"
            )
        return folder

    def write(self, step: int, fill: Callable[[Path], None], state: dict[str, Any], keep: int) -> Path:
        """Let `fill` write into a temporary folder, rename it to `global_step_N`, move the pointer,
        and delete old checkpoints.

        Raises CheckpointError if a file cannot be written; the previous checkpoint is then intact.
        """
        aside = self.root / f".writing_global_step_{step}"
        final = self.path(step)
        replaced = self._replaced(step)
        # Left by processes that were killed.
        for unfinished in self.root.glob(".writing_global_step_*"):
            shutil.rmtree(unfinished, ignore_errors=True)
        try:
            aside.mkdir(parents=True)
            fill(aside)
            fsync_tree(aside)
            # Last: a folder without it is no complete checkpoint.
            write_whole(aside / STATE_FILE, json.dumps(state, indent=1).encode(), synced=True)
            if final.exists():
                shutil.rmtree(replaced, ignore_errors=True)
                final.rename(replaced)
            try:
                aside.rename(final)
            except OSError:
                if replaced.exists():
                    replaced.rename(final)
                raise
            shutil.rmtree(replaced, ignore_errors=True)
            write_whole(self.root / POINTER, str(step).encode(), synced=True)
        except Exception as error:
            shutil.rmtree(aside, ignore_errors=True)
            raise CheckpointError(
                f"checkpoint of step {step} could not be written to {self.root}: {error}; the "
                "previous one is intact"
            ) from error
        self._drop_old(keep)
        return final

    def _replaced(self, step: int) -> Path:
        """Return where the checkpoint of a step is while another one takes its place."""
        return self.root / f".replaced_global_step_{step}"

    def amend(self, step: int, state: Mapping[str, Any]) -> None:
        """Add `state` to the trainer state of a step's checkpoint, if there is one.

        Raises CheckpointError if it cannot be written; the old state is then intact.
        """
        path = self.path(step) / STATE_FILE
        if not path.is_file():
            return
        try:
            extended = json.loads(path.read_text()) | dict(state)
            write_whole(path, json.dumps(extended, indent=1).encode(), synced=True)
        except OSError as error:
            raise CheckpointError(
                f"{path} could not be extended: {error}; the checkpoint is intact"
            ) from error

    def _drop_old(self, keep: int) -> None:
        """Delete old checkpoints by age, not by step: a restarted run has lower steps than
        checkpoints of an earlier run in this folder.
        """
        if keep <= 0:
            return
        for folder in sorted(self.root.glob("global_step_*"), key=_written_at)[:-keep]:
            shutil.rmtree(folder, ignore_errors=True)


def read_state(
    folder: Path,
    placement: Placement,
    critics: Mapping[str, Any] | None = None,
    bases: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Return the trainer state of a checkpoint after comparing it with this run.

    Args:
        folder: folder of the checkpoint.
        placement: placement of this run.
        critics: `critic_signature` of this run; None skips the check of critics.
        bases: `fingerprints` of fixed models of this run; only groups that are in both are
            compared.

    Raises:
        CheckpointError: the checkpoint has another placement, other shapes or bases of adapters, or
            other critics.
    """
    state: dict[str, Any] = json.loads((folder / STATE_FILE).read_text())
    if _without_lora(state["placement"]) != _without_lora(placement.signature()):
        raise CheckpointError(
            f"{folder} was written by the team {_table(state['placement'])}, this run has "
            f"{_table(placement.signature())}; use the same agents and sharing, or start anew with "
            "trainer.resume_mode=disable"
        )
    _check_adapters(folder, state, placement, bases or {})
    saved_critics = state.get("critic", {})
    if critics is not None and saved_critics != critics:
        raise CheckpointError(
            f"{folder} holds {_critics(saved_critics)}, this run needs {_critics(critics)}; use "
            "the same algorithm.adv_estimator, critic.enable and "
            "critic.joint_prompt_length, or start anew with "
            "trainer.resume_mode=disable"
        )
    return state


def link_models(saved: Path, folder: Path) -> None:
    """Give a checkpoint the policies and critics of another one: the same files, without a copy
    where the file system allows it.
    """

    def link(source: str, target: str) -> None:
        try:
            os.link(source, target)
        except OSError:
            shutil.copy2(source, target)

    for name in MODELS:
        if (saved / name).is_dir():
            shutil.copytree(saved / name, folder / name, copy_function=link)


def _without_lora(signature: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if name != "lora"} for row in signature]


def _check_adapters(
    folder: Path, state: Mapping[str, Any], placement: Placement, bases: Mapping[str, str]
) -> None:
    for saved, row in zip(state["placement"], placement.signature(), strict=True):
        there = saved.get("lora", {})
        here = row.get("lora", {})
        for name in sorted({*there, *here}):
            if there.get(name) != here.get(name):
                raise CheckpointError(
                    f"{folder} holds the adapter '{row['policy_id']}' of agent '{row['agent_id']}' "
                    f"with {name}={there.get(name)}, this run has {name}={here.get(name)}; set "
                    f"{placement.agent(row['agent_id']).key(f'model.{name}')} as in training, or "
                    "start anew with trainer.resume_mode=disable"
                )
    for wg_id, fingerprint in state.get("bases", {}).items():
        if bases.get(wg_id, fingerprint) != fingerprint:
            spec = next(spec for spec in placement.groups if spec.wg_id == wg_id)
            holds = (
                "holds adapters on"
                if spec.adapters
                else "is of a team with"
                if spec.agent_ids
                else "was trained on rewards of"
            )
            raise CheckpointError(
                f"{folder} {holds} an earlier version of the model {spec.model_path!r}; its files "
                "have changed since. Restore them, or start anew with trainer.resume_mode=disable"
            )


def find_checkpoint(config: TrainerConfig, store: CheckpointStore) -> Path | None:
    """Return the checkpoint to continue from under `trainer.resume_mode`, or None to start anew.

    Raises CheckpointError for a path without a checkpoint, or no checkpoint to
    evaluate (`trainer.val_only`): untrained models are evaluated only with
    `trainer.resume_mode=disable`.
    """
    if config.resume_mode == "disable":
        return None
    if config.resume_mode == "auto":
        latest_folder = store.latest()
        if latest_folder is None and config.val_only:
            raise CheckpointError(
                f"trainer.val_only=true, but {store.root} holds no checkpoint; train first, name "
                "one with trainer.resume_mode=.../global_step_N, or evaluate the models as given with "
                "trainer.resume_mode=disable"
            )
        return latest_folder
    folder = Path(config.resume_mode).expanduser()
    if (folder / STATE_FILE).is_file():
        return folder
    # the folder of a run stands for its last checkpoint, as in an export
    for root in (folder / "checkpoints", folder):
        if (last := CheckpointStore(root).latest()) is not None:
            return last
    from verl.trainer.checkpoint.there import checkpoints_there  # of an error alone

    raise CheckpointError(
        f"trainer.resume_mode={config.resume_mode!r} is not a checkpoint (a folder "
        f"global_step_N with {STATE_FILE}); expected {EXPECTED_MODE}{checkpoints_there(folder, STATE_FILE)}"
    )


def _written_at(folder: Path) -> tuple[int, int]:
    state = folder / STATE_FILE
    return (state.stat().st_mtime_ns if state.is_file() else 0, int(folder.name.removeprefix("global_step_")))


def _table(signature: list[dict[str, str]]) -> str:
    return ", ".join(
        f"{row['agent_id']} -> {row['wg_id']}{' (frozen)' if row.get('frozen') else ''}" for row in signature
    )


def _critics(signature: Mapping[str, Any]) -> str:
    if not signature:
        return "no critic"
    length = "null" if signature["view"] == "own" else "a number"
    return f"critics of {signature['wg_ids']} with critic.joint_prompt_length={length}"
