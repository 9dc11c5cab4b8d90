"""Logging of a run's metrics: `Tracking(...).log(data, step)` to any of `BACKENDS`."""

from verl.utils.tracking.backend import BACKENDS, Backend, RunInfo, check_backends
from verl.utils.tracking.tracking import Tracking

__all__ = ["BACKENDS", "Backend", "RunInfo", "Tracking", "check_backends"]
