"""Calls to the worker groups of a team: one at a time to each group, several groups in parallel,
all recorded in the timeline.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

from verl.models.loader import ModelPathError
from verl.protocol.generate import EngineGoneError, EngineSetupError
from verl.single_controller.worker_group import WorkerDiedError
from verl.trainer.config.spec import ConfigError
from verl.trainer.ppo.timeline import Timeline
from verl.utils.checkpoint import CheckpointError

T = TypeVar("T")
# Errors with a complete message; any other is a bug and keeps its traceback.
PLAIN_ERRORS = (
    WorkerDiedError,
    EngineGoneError,
    EngineSetupError,
    CheckpointError,
    ModelPathError,
    TimeoutError,
)


class TeamError(RuntimeError):
    """A worker died, timed out, or could not load or save; the message names its worker group."""


class GroupCalls:
    """Runs functions that call worker groups.

    Args:
        wg_ids: all worker groups.
        parallel: several groups may work at the same time.

    Attributes:
        timeline: start and end of every call.
    """

    def __init__(self, wg_ids: Collection[str], parallel: bool) -> None:
        self.timeline = Timeline()
        self._locks = {wg_id: threading.RLock() for wg_id in wg_ids}
        self._threads = ThreadPoolExecutor(
            max_workers=max(len(wg_ids), 1) if parallel else 1, thread_name_prefix="worker_group"
        )

    def run(self, call: str, wg_ids: Sequence[str], fn: Callable[[str], T]) -> dict[str, T]:
        """Return the result of `fn` for several groups, recorded as `call`. Raises as `each` does."""

        def work(wg_id: str) -> T:
            with self.hold(wg_id, call):
                return fn(wg_id)

        return self.each(wg_ids, work)

    def each(self, wg_ids: Sequence[str], fn: Callable[[str], T]) -> dict[str, T]:
        """Return the result of `fn`, which holds its group while it calls it, for several groups.

        Raises after all have ended what `with_group` makes of the first error.
        """
        futures = {wg: self._threads.submit(fn, wg) for wg in wg_ids}
        errors: Mapping[str, BaseException | None] = {wg: f.exception() for wg, f in futures.items()}
        for wg, error in errors.items():
            if error is not None:
                raise with_group(error, wg) from error
        return {wg: f.result() for wg, f in futures.items()}

    @contextmanager
    def hold(self, wg_id: str, call: str = "") -> Iterator[None]:
        """Let no other thread call a group, and record the time as `call` unless that is empty."""
        with self._locks[wg_id]:
            if not call:
                yield
                return
            with self.timeline.span(wg_id, call):
                yield

    def end(self) -> None:
        """Start no more calls."""
        self._threads.shutdown(wait=False, cancel_futures=True)


def with_group(error: BaseException, wg_id: str) -> RuntimeError | ConfigError:
    """Return the error of a call with the name of its worker group: TeamError if it has a complete
    message, and ConfigError if a key has to be changed.
    """
    raised = as_raised(error)
    if isinstance(raised, ConfigError):
        return ConfigError(f"worker group '{wg_id}': {raised}")
    if isinstance(error, PLAIN_ERRORS):
        return TeamError(f"worker group '{wg_id}': {as_raised(error)}")
    return RuntimeError(f"worker group '{wg_id}': {error}")


def as_raised(error: BaseException) -> BaseException:
    """Return the error that the worker raised, without Ray's traceback."""
    return error.args[0] if error.args and isinstance(error.args[0], BaseException) else error
