"""Methods of a Ray worker group made by hand, for code that binds its own as verl's groups do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ray

from verl.protocol.future import PendingResults
from verl.single_controller.base.worker_group import WorkerGroup, bound_method


def func_generator(
    self: WorkerGroup,
    method_name: str,
    dispatch_fn: Callable[..., Any],
    collect_fn: Callable[..., Any],
    execute_fn: Callable[..., Any],
    blocking: bool,
) -> Callable[..., Any]:
    """Return a method of the group `self`: dispatch, execute, wait if blocking, collect.

    Args:
        self: the worker group.
        method_name: of the workers.
        dispatch_fn, collect_fn: as in `register_dispatch_mode`.
        execute_fn: such as `self.execute_all`; it returns the group's pending results or Ray's object references.
        blocking: wait for the results, as long as the group waits for any.
    """

    def wait(output: Any) -> Any:
        return output.get() if isinstance(output, PendingResults) else ray.get(output, timeout=self.timeout_s)

    return bound_method(self, method_name, dispatch_fn, collect_fn, execute_fn, wait if blocking else None)
