"""Checkpoints of a run: what one holds, when it is written, and how a run goes on from one."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from verl.protocol.template_time import TEMPLATE_TIME
from verl.trainer.checkpoint.given_models import fingerprints, groups_with_fixed_models
from verl.trainer.checkpoint.store import (
    CONFIG_FILE,
    PLAN_FILE,
    CheckpointStore,
    find_checkpoint,
    link_models,
    read_state,
)
from verl.trainer.config import RunConfig
from verl.trainer.plan.command_line import save_config
from verl.trainer.plan.run import RunPlan
from verl.trainer.ppo.collect.source import SampleSource
from verl.trainer.ppo.collect.step_samples import StepSamples
from verl.trainer.ppo.credit.step_credit import CreditAssigner
from verl.trainer.ppo.critic import critic_signature
from verl.trainer.ppo.progress import Progress
from verl.trainer.ppo.team import TeamWorkers
from verl.utils.checkpoint import CheckpointError
from verl.utils.dataset import TaskLoader
from verl.utils.names import listed

# The position in the data set, beside the trainer state.
LOADER_FILE = "data.pt"


class Checkpointer:
    """Writes the checkpoints of a run, and restores the one that it goes on from.

    Args:
        config: configuration of the run.
        plan: plan of the run, which every checkpoint has in JSON.
        team: worker groups.
        loader: of the training tasks; None if nothing is trained, then nothing is saved.
        source: of training samples; None if nothing is trained.
        credit: has state between steps.
        progress: of the run.
        folder: of all checkpoints of the run.
    """

    def __init__(
        self,
        config: RunConfig,
        plan: RunPlan,
        team: TeamWorkers,
        loader: TaskLoader | None,
        source: SampleSource | None,
        credit: CreditAssigner,
        progress: Progress,
        folder: Path,
    ) -> None:
        self.config = config
        self.plan = plan
        self.team = team
        self.loader = loader
        self.source = source
        self.credit = credit
        self.progress = progress
        self.store = CheckpointStore(folder)
        self._critics = critic_signature(config.critic, plan)
        self._models: dict[str, str] = {}
        self._saved_step: int | None = None
        self._saved_in: Path | None = None
        # The last completed step when the next one began, and the state of credit then.
        self._credit_before: tuple[int, dict[str, Any]] | None = None

    def due(self, step: int) -> bool:
        """Return whether `trainer.save_freq` asks for a checkpoint of a step."""
        save_freq = self.config.trainer.save_freq
        return save_freq > 0 and step % save_freq == 0

    @property
    def up_to_date(self) -> bool:
        """Whether the last completed step is saved."""
        return self._saved_step == self.progress.global_step

    def remember_credit(self) -> None:
        """Remember the state of credit before a step changes it, in case that the step is not
        completed.
        """
        self._credit_before = (self.progress.global_step, self.credit.state_dict())

    def save_if_new(self, groups: bool = False) -> None:
        """Save the last completed step unless that has been done.

        Args:
            groups: save it again if it has been, with links to the models and with the groups that
                have been completed since.

        Raises:
            CheckpointError: a file cannot be written; the previous checkpoint is then intact.
        """
        models = self._saved_in if self.up_to_date else None
        if (models is not None and not groups) or self.loader is None:
            return
        loader_state = self.loader.state_dict()

        def fill(folder: Path) -> None:
            save_config(self.config, folder / CONFIG_FILE)
            (folder / PLAN_FILE).write_text(json.dumps(self.plan.to_json(), indent=1), encoding="utf-8")
            if models is None:
                self.team.save_checkpoint(folder, self.config.trainer.save_hf_model)
            else:
                link_models(models, folder)
            torch.save(loader_state, folder / LOADER_FILE)
            if self.source is not None:
                self.source.save(folder)

        step = self.progress.global_step
        keep = self.config.trainer.max_ckpt_to_keep
        self._saved_in = self.store.write(step, fill, self._state(), keep)
        self._saved_step = step

    def _state(self) -> dict[str, Any]:
        before = self.progress.before
        return {
            "global_step": self.progress.global_step,
            "generated_tokens": self.progress.generated_tokens,
            "placement": self.plan.signature(),
            # Of every worker group; when a run resumes, only those of models that are loaded again
            # count.
            "bases": self._models,
            "critic": self._critics,
            "async_training": self.config.async_training.mode,
            "credit": self.credit.state_dict(),
            "before": before.to_json() if before else None,
            "template_time": TEMPLATE_TIME.state(),
        }

    def save_last_step(self) -> None:
        """Save the last completed step although a later one has begun, which is undone. Raises as
        `save_if_new` does.
        """
        step = self.progress.global_step
        if self.source is not None:
            # The samples of the later step, or its tasks, are those of the resumed run's next step.
            self.source.rewind(step)
        if self._credit_before is not None and self._credit_before[0] == step:
            # The later step may have changed the state of credit before it ended.
            self.credit.load_state_dict(self._credit_before[1])
        # With `fully_async` groups have been completed since the checkpoint of the step.
        self.save_if_new(groups=self.config.async_training.mode == "fully_async")

    def amend(self, state: Mapping[str, Any]) -> None:
        """Add to the trainer state of the last completed step's checkpoint, if there is one.

        Raises:
            CheckpointError: it cannot be written; the checkpoint is then intact.
        """
        self.store.amend(self.progress.global_step, state)

    def add_validation(self) -> None:
        """Add the validation of the last step of the run to its checkpoint, for a finished run that
        is started again. Raises as `amend` does.
        """
        if self.progress.after is not None:
            self.amend({"after": self.progress.after.to_json()})

    def resume(self) -> Path | None:
        """Restore the state of a run after its models have been loaded, and return the folder of
        its checkpoint; None if the run begins anew.

        Raises:
            CheckpointError: there is no checkpoint where one is expected, or it is of another run.
        """
        # Not earlier: before the models were loaded, those of the hub may not have been on this
        # machine.
        self._models = fingerprints(self.plan.groups)
        folder = find_checkpoint(self.config.trainer, self.store)
        if folder is None:
            return None
        val_only = self.config.trainer.val_only
        fixed = {spec.wg_id for spec in groups_with_fixed_models(self.plan, self.plan.references)}
        bases = {wg_id: fingerprint for wg_id, fingerprint in self._models.items() if wg_id in fixed}
        state = read_state(folder, self.plan, None if val_only else self._critics, bases)
        # Fingerprints from the start of the run, also of models that are not needed now.
        self._models |= state.get("bases", {})
        if not val_only:
            # of runs that go on
            from verl.trainer.ppo.asynchronous.saved_groups import check_checkpoint

            check_checkpoint(folder, state, self.config.async_training, self.config.data)
        self.team.load_checkpoint(folder)
        if self.loader is not None:
            self.loader.load_state_dict(torch.load(folder / LOADER_FILE, weights_only=True))
        if self.source is not None and not val_only:
            self.source.load(folder)
        self.credit.load_state_dict(state["credit"])
        self._restore_progress(state)
        self._saved_step = self.progress.global_step
        self._saved_in = folder
        return folder

    def _restore_progress(self, state: Mapping[str, Any]) -> None:
        progress = self.progress
        progress.complete(int(state["global_step"]), int(state["generated_tokens"]))
        # An evaluation of a checkpoint makes validations of its own.
        if not self.config.trainer.val_only:
            from verl.trainer.ppo.validation import ValidationResult  # of runs that go on alone

            before = state["before"]
            # A run that goes on to more steps than those of the checkpoint has another last
            # validation.
            after = state.get("after") if progress.finished else None
            progress.before = ValidationResult.from_json(before) if before else None
            progress.after = ValidationResult.from_json(after) if after else None

    def rescue(self) -> str:
        """Save the last completed step, which is the state of all policies, after an error. Return
        a note on where to continue, or an empty string if nothing has been trained; raises no
        error.
        """
        if self.progress.global_step == 0:
            return ""
        return self.where_to_continue(self.try_to_save())

    def try_to_save(self) -> str:
        """Save the last completed step as `save_last_step` does. Return why it could not be saved,
        for `where_to_continue`, or an empty string; raises no error.
        """
        try:
            self.save_last_step()
        except Exception as error:
            return f"step {self.progress.global_step} could not be saved: {' '.join(str(error).split())}; "
        return ""

    def where_to_continue(self, why: str = "", fate: str = "") -> str:
        """Return a note for an error: which checkpoint there is, and how to go on from it.

        Args:
            why: why the last step is not in it, with a semicolon at the end; empty if it is.
            fate: what became of samples of later steps, with a separator at the start.
        """
        if self._saved_in is None:
            return f"{why}no earlier step was saved, see trainer.save_freq"
        resumed = None
        # An error of the search must not hide the one that ends the run.
        with suppress(CheckpointError, OSError):
            resumed = find_checkpoint(self.config.trainer, self.store)
        # The same command may continue from another folder, or anew, by `trainer.resume_mode`.
        how = (
            "the same command continues from it"
            if resumed == self._saved_in
            else "continue from it with trainer.resume_mode=auto"
        )
        which = "the last checkpoint is" if why else f"step {self.progress.global_step} is saved in"
        return f"{why}{which} {self._saved_in}; {how}{fate}"


def torn_step(step: int, samples: Iterable[StepSamples], tasks: Iterable[str]) -> tuple[str, str]:
    """Return why a step cannot be saved of which some updates have ended and others have not, and
    the fate of its groups, as `where_to_continue` takes them.

    Args:
        step: its number.
        samples: of this step, and of later ones that have begun.
        tasks: names of the tasks on the collector's event loop when the error came.
    """
    uids = listed(
        str(uid) for part in samples if part.batch is not None for uid in part.batch.non_tensor_batch["uid"]
    )
    # Episodes are named `<group>#<number>`.
    playing = listed(name.rpartition("#")[0] for name in tasks if "#" in name)
    why = f"step {step} was being updated, so the policies have not all completed the same step; "
    return why, f"; groups of that step: {uids}; in progress: {playing or 'none'}"
