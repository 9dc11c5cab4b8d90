"""Metrics on the console."""

from collections.abc import Mapping

from verl.utils.console import StepDisplay
from verl.utils.tracking.backend import RunInfo


class ConsoleBackend:
    """One short line a step, under it a live bar where there is a terminal."""

    def __init__(self, run: RunInfo) -> None:
        self._display = StepDisplay(run.total_steps, start_step=run.resume_step or 0)

    def log(self, data: Mapping[str, float], step: int) -> None:
        """Show the step's headline numbers."""
        self._display.update(step, data)

    def finish(self) -> None:
        """Take the bar down."""
        self._display.finish()
