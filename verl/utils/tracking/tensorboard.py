"""Metrics for TensorBoard, under `run_dir/tensorboard`."""

import html
from collections.abc import Mapping, Sequence
from typing import Any

from verl.utils.tracking.backend import RunInfo


class TensorboardBackend:
    """One scalar per metric; resuming hides the points after the resumed step."""

    def __init__(self, run: RunInfo) -> None:
        from torch.utils.tensorboard import SummaryWriter

        purge_step = None if run.resume_step is None else run.resume_step + 1
        self.path = run.run_dir / "tensorboard"
        self._writer = SummaryWriter(str(self.path), purge_step=purge_step)

    def log(self, data: Mapping[str, float], step: int) -> None:
        """Write every metric of the step."""
        for key, value in data.items():
            self._writer.add_scalar(key, value, step)

    def log_table(self, name: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], step: int) -> None:
        """Write a table as a text in Markdown."""
        lines = [columns, ["---"] * len(columns), *rows]
        text = "\n".join(f"| {' | '.join(map(_cell, line))} |" for line in lines)
        self._writer.add_text(name, text, step)

    def finish(self) -> None:
        """Flush and close."""
        self._writer.close()


def _cell(value: Any) -> str:
    """Return a value as a cell of a table in Markdown; marks of a text in it are shown, not applied."""
    text = "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
    escaped = "".join(f"&#{ord(mark)};" if mark in "|*_`[]\\#~" else mark for mark in html.escape(text))
    return "<br>".join(escaped.splitlines())
