"""Metrics for Weights & Biases; WANDB_MODE=offline keeps them under `run_dir/wandb`."""

from collections.abc import Mapping, Sequence
from typing import Any

from verl.utils.tracking.backend import RunInfo


class WandbBackend:
    """A wandb run with metrics over `step`; `run_dir/wandb_run_id` lets a resumed run continue it.

    Steps repeated after a resume are plotted twice, since wandb cannot delete points.
    """

    def __init__(self, run: RunInfo) -> None:
        import wandb

        run.run_dir.mkdir(parents=True, exist_ok=True)
        self.path = run.run_dir / "wandb"
        id_file = run.run_dir / "wandb_run_id"
        run_id = run.earlier_id(id_file)
        self._run = wandb.init(
            project=run.project_name,
            name=run.experiment_name,
            config=dict(run.config),
            dir=str(run.run_dir),
            id=run_id,
            resume="allow" if run_id else None,
        )
        id_file.write_text(self._run.id, encoding="utf-8")
        self._run.define_metric("*", step_metric="step")

    def log(self, data: Mapping[str, float], step: int) -> None:
        """Send the metrics of the step."""
        self._run.log({**data, "step": step})

    def log_table(self, name: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], step: int) -> None:
        """Send a table."""
        import wandb

        self._run.log({name: wandb.Table(list(columns), [list(row) for row in rows]), "step": step})

    def finish(self) -> None:
        """Upload remaining metrics and close the run."""
        self._run.finish()
