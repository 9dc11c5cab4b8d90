"""verl's `RayWorkerGroup`: it can attach to running actors, separate the workers of a colocated
class, and bind methods explicitly.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import ray

from verl.compat.decorator import MAGIC_ATTR, bound_method, get_predefined_execute_fn, mode_functions
from verl.single_controller.ray.actor_class import RayClassWithInitArgs
from verl.single_controller.ray.pending import RayPendingResults
from verl.single_controller.ray.resource_pool import RayResourcePool, Slot
from verl.single_controller.ray.worker_group import RayWorkerGroup as ActorGroup
from verl.single_controller.ray.worker_group import find_rendezvous
from verl.single_controller.worker_group import DEFAULT_TIMEOUT_S, PendingResults, WorkerGroup

logger = logging.getLogger(__name__)


class RayWorkerGroup(ActorGroup):
    """One actor per rank of a resource pool.

    Args:
        resource_pool: pool in which the actors run.
        ray_cls_with_init: their class and constructor arguments. Optional for a group that attaches
            to running actors: without it their methods are called with
            `execute_all_sync("method", ...)`.
        bin_pack: pack each node's processes onto one node.
        name_prefix: start of the actors' names; random when None.
        detached: actors outlive this driver.
        worker_names: names of running actors to attach to, instead of starting actors.
        worker_handles: handles of running actors to attach to.
        ray_wait_register_center_timeout: limit of the wait for the pool's resources, in seconds;
            the pool's own when None.
        worker_env: environment variables for the workers, e.g. OMP_NUM_THREADS.
        device_name: "cuda" or "cpu"; taken from the pool when None.
        use_gpu: workers get a share of their bundle's GPU; taken from the pool when None.
        master_addr: address of rank 0 for `torch.distributed`, given with `master_port`; found when
            None.
        master_port: port of rank 0; a free one when None.
        master_port_range: `[begin, end)` to take a free port from.
        timeout_s: limit of every wait for a result, in seconds.
        **kwargs: accepted for compatibility, without effect (`profile_steps`,
            `worker_nsight_options`); a warning names them.

    Raises ValueError when `worker_env` sets a variable that the group sets itself, for
    `master_addr` without its port and for GPUs of a pool without GPUs; TimeoutError when resources
    are not available in time, RuntimeError when `master_port_range` has no free port.
    """

    def __init__(
        self,
        resource_pool: RayResourcePool | None = None,
        ray_cls_with_init: RayClassWithInitArgs | None = None,
        bin_pack: bool = True,
        name_prefix: str | None = None,
        detached: bool = False,
        worker_names: list[str] | None = None,
        worker_handles: list[Any] | None = None,
        ray_wait_register_center_timeout: float | None = None,
        *,
        worker_env: dict[str, str] | None = None,
        device_name: str | None = None,
        use_gpu: bool | None = None,
        master_addr: str | None = None,
        master_port: int | str | None = None,
        master_port_range: Sequence[int] | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        method_prefix: str = "",
        **kwargs: Any,
    ) -> None:
        if kwargs:
            logger.warning("RayWorkerGroup: %s has no effect here", ", ".join(sorted(kwargs)))
        if master_addr is not None and master_port is None:
            raise ValueError(f"master_addr={master_addr!r} needs a port: give master_port too, or neither")
        with_gpus = resource_pool is not None and resource_pool.use_gpu
        self.ray_cls_with_init = ray_cls_with_init
        self.use_gpu = with_gpus if use_gpu is None else use_gpu
        self.device_name = device_name or ("cuda" if with_gpus else "cpu")
        self._method_prefix = method_prefix
        self._strategy = "STRICT_PACK" if bin_pack else "PACK"
        self._master = (master_addr, master_port, master_port_range)
        if worker_names is not None or worker_handles is not None:
            WorkerGroup.__init__(self, resource_pool, timeout_s=timeout_s)
            self._begin(name_prefix)
            self._worker_names = list(
                worker_names or [f"worker {i}" for i in range(len(worker_handles or []))]
            )
            self._workers = (
                [ray.get_actor(name) for name in self._worker_names]
                if worker_handles is None
                else list(worker_handles)
            )
            if ray_cls_with_init is not None and not method_prefix:
                self._bind_worker_methods(ray_cls_with_init.worker_class)
            return
        if ray_cls_with_init is None:
            raise ValueError("RayWorkerGroup needs ray_cls_with_init, a RayClassWithInitArgs")
        if self.use_gpu and not with_gpus:
            raise ValueError(
                "use_gpu=True, but the resource pool has no GPUs: make it with use_gpu=True, or "
                "leave it out here"
            )
        if ray_wait_register_center_timeout is not None and isinstance(resource_pool, RayResourcePool):
            resource_pool.timeout_s = ray_wait_register_center_timeout
        if detached:
            ray_cls_with_init.update_options({"lifetime": "detached"})
        super().__init__(
            resource_pool,  # type: ignore[arg-type]
            ray_cls_with_init,
            name_prefix=name_prefix,
            worker_env=worker_env,
            timeout_s=timeout_s,
        )

    @classmethod
    def from_detached(
        cls,
        name_prefix: str | None = None,
        worker_names: list[str] | None = None,
        worker_handles: list[Any] | None = None,
        ray_cls_with_init: RayClassWithInitArgs | None = None,
        **kwargs: Any,
    ) -> RayWorkerGroup:
        """Return a group that attaches to running actors; its `shutdown` does not stop them."""
        return cls(
            None,
            ray_cls_with_init,
            name_prefix=name_prefix,
            worker_names=worker_names,
            worker_handles=worker_handles,
            **kwargs,
        )

    @property
    def master_address(self) -> str | None:
        """Address of rank 0 for `torch.distributed`; None for a group that attached to running
        actors.
        """
        return self._rendezvous and self._rendezvous[0]

    @property
    def master_port(self) -> int | None:
        """Port of rank 0 for `torch.distributed`; None as for `master_address`."""
        return self._rendezvous and self._rendezvous[1]

    # ---- hooks of the base class

    def _slots(self, pool: RayResourcePool) -> list[Slot]:
        return pool.slots(self._strategy)

    def _use_gpu(self, pool: RayResourcePool) -> bool:
        return self.use_gpu and self.device_name != "cpu"

    def _find_rendezvous(self, slots: list[Slot]) -> tuple[str, int]:
        return find_rendezvous(slots, *self._master)

    def _submit(
        self, method_name: str, calls: list[tuple[int, tuple[Any, ...], dict[str, Any]]]
    ) -> RayPendingResults:
        return super()._submit(self._method_prefix + method_name, calls)

    # ---- calls

    def execute_rank_zero_async(self, method_name: str, *args: Any, **kwargs: Any) -> Any:
        """Start a method on rank 0 and return the Ray reference to its result."""
        return self._submit(method_name, [(0, args, kwargs)])[0]

    def execute_rank_zero_sync(self, method_name: str, *args: Any, **kwargs: Any) -> Any:
        """Run a method on rank 0."""
        return self._submit(method_name, [(0, args, kwargs)]).get()[0]

    def execute_all(self, method_name: str, *args: Any, **kwargs: Any) -> PendingResults:
        """Alias of `execute_all_async`."""
        return self.execute_all_async(method_name, *args, **kwargs)

    def execute_rank_zero(self, method_name: str, *args: Any, **kwargs: Any) -> Any:
        """Alias of `execute_rank_zero_async`."""
        return self.execute_rank_zero_async(method_name, *args, **kwargs)

    def _bind_worker_method(
        self, user_defined_cls: type, func_generator: Callable[..., Callable[..., Any]]
    ) -> list[str]:
        """Bind the registered methods of a class with a `func_generator` as in verl, and return
        their names.
        """
        method_attributes = {
            name: getattr(getattr(user_defined_cls, name, None), MAGIC_ATTR, None)
            for name in dir(user_defined_cls)
        }
        registered = {
            name: attributes for name, attributes in method_attributes.items() if attributes is not None
        }
        for name, attributes in registered.items():
            execute_fn = getattr(
                self, get_predefined_execute_fn(attributes["execute_mode"])["execute_fn_name"]
            )
            parts = {**mode_functions(attributes["dispatch_mode"]), "execute_fn": execute_fn}
            setattr(self, name, func_generator(self, name, **parts, blocking=attributes["blocking"]))
        return list(registered)

    # ---- colocation

    def spawn(self, prefix_set: Iterable[str]) -> dict[str, RayWorkerGroup]:
        """Return one group per worker class of a colocated class, all on this group's actors."""
        worker_class = None if self.ray_cls_with_init is None else self.ray_cls_with_init.worker_class
        classes: dict[str, type] = getattr(worker_class, "colocated_classes", {})
        groups = {}
        for prefix in prefix_set:
            if prefix not in classes:
                raise ValueError(f"no worker {prefix!r} in this group; it has {sorted(classes)}")
            group = RayWorkerGroup.from_detached(
                name_prefix=self.name_prefix,
                worker_names=self._worker_names,
                worker_handles=self._workers,
                ray_cls_with_init=self.ray_cls_with_init,
                timeout_s=self.timeout_s,
                method_prefix=f"{prefix}_",
            )
            group._bind_worker_methods(classes[prefix])
            groups[prefix] = group
        return groups

    def spawn_fused(self, prefix_set: Iterable[str]) -> dict[str, RayWorkerGroup]:
        """Alias of `spawn`."""
        return self.spawn(prefix_set)

    def fuse(self, prefix_set: Iterable[str]) -> None:
        """Make the group of each worker class an attribute of this group, under its prefix."""
        for prefix, group in self.spawn(prefix_set).items():
            setattr(self, prefix, group)


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
        method_name: method of the workers.
        dispatch_fn, collect_fn: as in `register_dispatch_mode`.
        execute_fn: function such as `self.execute_all`, which returns the group's pending results
            or Ray object references.
        blocking: wait for the results, up to the group's timeout.
    """

    def wait(output: Any) -> Any:
        return output.get() if isinstance(output, PendingResults) else ray.get(output, timeout=self.timeout_s)

    return bound_method(self, method_name, dispatch_fn, collect_fn, execute_fn, wait if blocking else None)
