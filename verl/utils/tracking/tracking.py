"""`Tracking`: one `log` call per step, sent to every backend of the run."""

import importlib
import logging
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from numbers import Real
from pathlib import Path
from types import TracebackType
from typing import Any, Optional, Union

from verl.utils.disk import writing
from verl.utils.tracking.backend import BACKENDS, Backend, RunInfo, check_backends

logger = logging.getLogger(__name__)


def open_backend(name: str, run: RunInfo) -> Backend:
    """Open a backend by its name in `BACKENDS` for a run and return it."""
    module = importlib.import_module(f"verl.utils.tracking.{name}")
    return getattr(module, f"{name.capitalize()}Backend")(run)


def to_number(name: str, value: Any) -> float:
    """Return `value` as a Python number; accepts numbers, numpy scalars and 0-dimensional tensors,
    raises TypeError for others.
    """
    if (
        not isinstance(value, Real)
        and callable(getattr(value, "item", None))
        and getattr(value, "ndim", None) == 0
    ):
        value = value.item()
    if isinstance(value, bool) or (isinstance(value, Real) and not isinstance(value, (int, float))):
        value = float(value)
    if not isinstance(value, (int, float)):
        raise TypeError(
            f"metric {name!r} is {type(value).__name__} {value!r}; expected one number, reduce it "
            "before logging"
        )
    return value


class Tracking:
    """Sends metrics to `default_backend`: a name of `BACKENDS`, or several.

    Files go under `run_dir` (default `outputs/<project>/<experiment>`). The backends open at
    `start`, or at the first `log`: until then `resume` may set the step after which an earlier run
    continues. Raises ValueError for an unknown backend and ModuleNotFoundError for one whose
    package is missing, before anything is written. A disk that is full or refuses is a DiskError
    that names what the backend writes.
    """

    def __init__(
        self,
        project_name: str,
        experiment_name: str,
        default_backend: Union[str, Sequence[str]] = "console",
        config: Optional[Mapping[str, Any]] = None,
        run_dir: Union[str, Path, None] = None,
        *,
        total_steps: int = 0,
        resume_step: Optional[int] = None,
    ) -> None:
        names = [default_backend] if isinstance(default_backend, str) else list(default_backend)
        check_backends(names)
        self._names = sorted(names, key=list(BACKENDS).index)
        self._run = RunInfo(
            project_name=project_name,
            experiment_name=experiment_name,
            run_dir=Path(run_dir)
            if run_dir is not None
            else Path("outputs") / project_name / experiment_name,
            config=config or {},
            total_steps=total_steps,
            resume_step=resume_step,
        )
        self._started = False
        self.backends: dict[str, Backend] = {}

    def resume(self, step: int) -> None:
        """Continue the earlier run in `run_dir` after `step`: its later steps are dropped.
        RuntimeError when already started.
        """
        if self._started:
            raise RuntimeError(
                f"resume({step}) after the first log; call it before, or pass resume_step={step}"
            )
        self._run = replace(self._run, resume_step=step)

    def start(self, total_steps: Optional[int] = None) -> None:
        """Open the backends; `total_steps` is for the progress bar. Further calls have no effect."""
        if self._started:
            return
        if total_steps is not None:
            self._run = replace(self._run, total_steps=total_steps)
        with ExitStack() as on_failure:
            on_failure.callback(self.finish)
            for name in self._names:
                with writing(self._run.run_dir):
                    self.backends[name] = open_backend(name, self._run)
            on_failure.pop_all()
        self._started = True

    def log(
        self, data: Mapping[str, Any], step: int, backend: Union[str, Sequence[str], None] = None
    ) -> None:
        """Send `data` (metric name to one number) as the metrics of `step`; `backend` limits it to
        some of the backends.
        """
        self.start()
        numbers = {name: to_number(name, value) for name, value in data.items()}
        backend_names = (
            self.backends if backend is None else [backend] if isinstance(backend, str) else backend
        )
        for name, destination in self.backends.items():
            if name in backend_names:
                with writing(self._path(destination)):
                    destination.log(numbers, int(step))

    @property
    def takes_tables(self) -> bool:
        """Whether a backend shows tables."""
        self.start()
        return any(hasattr(destination, "log_table") for destination in self.backends.values())

    def log_table(self, name: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], step: int) -> None:
        """Send a table of numbers and texts to the backends that show tables, under a name with the
        step: one of an earlier step stays.
        """
        self.start()
        for destination in self.backends.values():
            if (log_table := getattr(destination, "log_table", None)) is not None:
                with writing(self._path(destination)):
                    log_table(f"{name}/{step:06d}", columns, rows, int(step))

    def finish(self) -> None:
        """Flush and close every backend; may be called twice. The first failure is raised after all
        are closed.
        """
        failure: Optional[tuple[OSError, Path]] = None
        while self.backends:
            name, destination = self.backends.popitem()
            try:
                destination.finish()
            except OSError as error:
                logger.error("closing the %s backend failed: %s", name, error)
                failure = failure or (error, self._path(destination))
        if failure is not None:
            first, path = failure
            with writing(path):
                raise first

    def _path(self, backend: Backend) -> Path:
        """Return the file or folder that a backend writes, for errors; the run's folder if it does
        not say.
        """
        return getattr(backend, "path", self._run.run_dir)

    def __enter__(self) -> "Tracking":
        return self

    def __exit__(
        self,
        kind: Optional[type[BaseException]],
        error: Optional[BaseException],
        traceback: Optional[TracebackType],
    ) -> None:
        self.finish()
