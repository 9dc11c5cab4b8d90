"""Metrics on the console."""

from collections.abc import Mapping

from verl.utils.console import StepDisplay
from verl.utils.tracking.backend import RunInfo


class ConsoleBackend:
    """One short line per step, and on a terminal a live bar under it."""

    def __init__(self, run: RunInfo) -> None:
        self._display = StepDisplay(run.total_steps, start_step=run.resume_step or 0)

    def log(self, data: Mapping[str, float], step: int) -> None:
        """Show the step's headline metrics."""
        self._display.update(step, data)

    def finish(self) -> None:
        """Remove the bar."""
        self._display.finish()
