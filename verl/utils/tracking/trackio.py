"""Metrics for Trackio, in the folder of all its projects (TRACKIO_DIR). They stay on this machine unless
TRACKIO_SPACE_ID or TRACKIO_SERVER_URL is set.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from verl.utils.tracking.backend import RunInfo


class TrackioBackend:
    """A Trackio run; `run_dir/trackio_run_name` lets a resumed run continue it.

    A fresh run whose name is taken gets another one of Trackio's. Steps repeated after a resume are
    plotted twice, since Trackio cannot delete points.
    """

    def __init__(self, run: RunInfo) -> None:
        import trackio

        run.run_dir.mkdir(parents=True, exist_ok=True)
        name_file = run.run_dir / "trackio_run_name"
        earlier_name = run.earlier_id(name_file)
        self._table = trackio.Table
        self._run = trackio.init(
            project=run.project_name,
            name=earlier_name or run.experiment_name,
            config=dict(run.config),
            resume="allow" if earlier_name else "never",
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )
        name_file.write_text(self._run.name, encoding="utf-8")

    def log(self, data: Mapping[str, float], step: int) -> None:
        """Store the metrics of the step."""
        self._run.log(dict(data), step=step)

    def log_table(self, name: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], step: int) -> None:
        """Store a table."""
        cells = [[_escaped(value) for value in row] for row in rows]
        self._run.log({name: self._table(columns=list(columns), data=cells)}, step=step)

    def finish(self) -> None:
        """Store what is pending and close the run."""
        self._run.finish()


def _escaped(value: Any) -> Any:
    """Return a cell in which no tag, link or image begins: Trackio shows texts as Markdown."""
    return value.replace("<", "\\<").replace("[", "\\[") if isinstance(value, str) else value
