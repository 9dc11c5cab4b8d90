"""Metrics for TensorBoard, under `run_dir/tensorboard`."""

from collections.abc import Mapping

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

    def finish(self) -> None:
        """Flush and close."""
        self._writer.close()
