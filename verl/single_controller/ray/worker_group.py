"""A worker group whose workers are Ray actors."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from verl.single_controller.base.worker import find_free_port
from verl.single_controller.base.worker_group import DEFAULT_TIMEOUT_S, WorkerGroup
from verl.single_controller.ray.actor_class import RayClassWithInitArgs
from verl.single_controller.ray.pending import RayPendingResults
from verl.single_controller.ray.resource_pool import RayResourcePool, Slot, node_of

logger = logging.getLogger(__name__)

SYSTEM_ENV = (
    "WORLD_SIZE", "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "RAY_LOCAL_RANK", "RAY_LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
    "WG_PREFIX", "WG_BACKEND",
)  # fmt: skip
_SHARED_ARGUMENT_TYPES = (str, int, float, bool, type(None), ray.ObjectRef)


class RayWorkerGroup(WorkerGroup):
    """One actor per rank of a resource pool.

    Args:
        resource_pool: where the actors run.
        ray_cls_with_init: what they are. A group that attaches to running actors does without: it has no methods of theirs then, and
            `execute_all_sync("method", ...)` calls them.
        bin_pack: pack each node's processes onto one node.
        name_prefix: start of the actors' names; random when None.
        detached: actors outlive this driver.
        worker_names: names of running actors to attach to, instead of starting some.
        worker_handles: handles of running actors to attach to.
        ray_wait_register_center_timeout: limit of the wait for the pool's resources, in seconds; the pool's own when None.
        worker_env: environment variables for the workers, e.g. OMP_NUM_THREADS.
        device_name: "cuda" or "cpu"; taken from the pool when None.
        use_gpu: workers get a share of their bundle's GPU; as the pool when None.
        master_addr: address of rank 0 for `torch.distributed`, given with `master_port`; found when None.
        master_port: port of rank 0; a free one when None.
        master_port_range: `[begin, end)` to take a free port from.
        timeout_s: limit of every wait for a result, in seconds.
        **kwargs: accepted as by verl and without effect here (`profile_steps`, `worker_nsight_options`); a warning names them.

    Raises ValueError when `worker_env` sets a variable that the group sets itself, for `master_addr` without its port and for
    GPUs of a pool without any; TimeoutError when resources do not come, RuntimeError when `master_port_range` has no free port.
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
        super().__init__(resource_pool, timeout_s=timeout_s)
        if kwargs:
            logger.warning("RayWorkerGroup: %s has no effect here", ", ".join(sorted(kwargs)))
        if master_addr is not None and master_port is None:
            raise ValueError(f"master_addr={master_addr!r} needs the port that goes with it: give master_port, or neither")
        self.ray_cls_with_init = ray_cls_with_init
        self.use_gpu = (resource_pool is not None and resource_pool.use_gpu) if use_gpu is None else use_gpu
        self.name_prefix = name_prefix if name_prefix is not None else uuid.uuid4().hex[:6]
        self.device_name = device_name or ("cuda" if resource_pool is not None and resource_pool.use_gpu else "cpu")
        self._method_prefix = method_prefix
        self._owned = False
        self._rendezvous: tuple[str, int] | None = None
        self._workers: list[Any] = []
        self._worker_names: list[str] = []
        if worker_names is not None or worker_handles is not None:
            self._attach(worker_names, worker_handles)
        else:
            if ray_wait_register_center_timeout is not None and isinstance(resource_pool, RayResourcePool):
                resource_pool.timeout_s = ray_wait_register_center_timeout
            if ray_cls_with_init is None:
                raise ValueError("RayWorkerGroup needs ray_cls_with_init, a RayClassWithInitArgs")
            rendezvous = _Rendezvous(master_addr, master_port, master_port_range)
            self._start(ray_cls_with_init, bin_pack, detached, self._checked_env(worker_env or {}), rendezvous)
        if ray_cls_with_init is not None and not method_prefix:
            self._bind_worker_methods(ray_cls_with_init.worker_class)

    @classmethod
    def from_detached(
        cls,
        name_prefix: str | None = None,
        worker_names: list[str] | None = None,
        worker_handles: list[Any] | None = None,
        ray_cls_with_init: RayClassWithInitArgs | None = None,
        **kwargs: Any,
    ) -> RayWorkerGroup:
        """Attach to running actors; `shutdown` then leaves them alone."""
        return cls(None, ray_cls_with_init, name_prefix=name_prefix, worker_names=worker_names, worker_handles=worker_handles, **kwargs)

    # ---- start and stop

    @staticmethod
    def _checked_env(worker_env: dict[str, str]) -> dict[str, str]:
        taken = sorted(set(worker_env) & set(SYSTEM_ENV))
        if taken:
            raise ValueError(f"worker_env may not set {', '.join(taken)}: the worker group sets these itself")
        return {key: str(value) for key, value in worker_env.items()}

    def _attach(self, worker_names: list[str] | None, worker_handles: list[Any] | None) -> None:
        names = worker_names or [f"worker {i}" for i in range(len(worker_handles or []))]
        self._workers = list(worker_handles) if worker_handles is not None else [ray.get_actor(name) for name in names]
        self._worker_names = list(names)

    def _start(
        self, spec: RayClassWithInitArgs, bin_pack: bool, detached: bool, worker_env: dict[str, str], rendezvous: _Rendezvous
    ) -> None:
        pool = self.resource_pool
        if not isinstance(pool, RayResourcePool):
            raise ValueError(f"RayWorkerGroup needs a RayResourcePool to start workers, got {type(pool).__name__}")
        if pool.world_size < 1:
            raise ValueError(f"the resource pool has no processes: process_on_nodes={pool.store}")
        if self.use_gpu and not pool.use_gpu:
            raise ValueError("use_gpu=True, but the resource pool has no GPUs: make it with use_gpu=True, or leave it out here")
        slots = pool.slots("STRICT_PACK" if bin_pack else "PACK")
        self._rendezvous = address, port = rendezvous.at(slots)
        pool.acquire(self)
        self._owned = True
        on_gpu = self.use_gpu and self.device_name != "cpu"
        if detached:
            spec.update_options({"lifetime": "detached"})
        class_name = spec.worker_class.__name__
        unique = uuid.uuid4().hex[:6]
        for rank, slot in enumerate(slots):
            env = {
                **worker_env,
                "WORLD_SIZE": str(len(slots)),
                "RANK": str(rank),
                "LOCAL_RANK": "0" if on_gpu else str(slot.local_rank),
                "LOCAL_WORLD_SIZE": str(slot.local_world_size),
                "RAY_LOCAL_RANK": str(slot.local_rank),
                "RAY_LOCAL_WORLD_SIZE": str(slot.local_world_size),
                "MASTER_ADDR": address,
                "MASTER_PORT": str(port),
                "WG_PREFIX": self.name_prefix,
                "WG_BACKEND": "ray",
            }
            name = f"{self.name_prefix}{class_name}_{unique}:{rank}"
            gpus = 1 / pool.max_colocate_count if on_gpu else 0.0
            self._workers.append(spec.create(slot.placement_group, slot.bundle, name, env, gpus))
            self._worker_names.append(name)

    def shutdown(self) -> None:
        """Kill this group's actors; the pool's placement groups go with the last group that used them."""
        workers, self._workers = self._workers, []
        if not self._owned:
            return
        self._owned = False
        if ray.is_initialized():
            for worker in workers:
                ray.kill(worker, no_restart=True)
        assert isinstance(self.resource_pool, RayResourcePool)
        self.resource_pool.release(self)

    @property
    def master_address(self) -> str | None:
        """Where rank 0 listens for `torch.distributed`; None for a group that attached to running actors."""
        return self._rendezvous and self._rendezvous[0]

    @property
    def master_port(self) -> int | None:
        """The port of `master_address`."""
        return self._rendezvous and self._rendezvous[1]

    # ---- calls

    @property
    def world_size(self) -> int:
        """Number of workers."""
        return len(self._worker_names)

    @property
    def workers(self) -> list[Any]:
        """Actor handles in rank order."""
        return self._workers

    @property
    def worker_names(self) -> list[str]:
        """Actor names in rank order."""
        return self._worker_names

    def _submit(self, method_name: str, calls: list[tuple[int, tuple[Any, ...], dict[str, Any]]]) -> RayPendingResults:
        if not self._workers:
            raise RuntimeError(f"cannot call {method_name}: this worker group has been shut down")
        shared = _Shared(calls) if len(calls) > 1 else None
        refs = []
        for rank, args, kwargs in calls:
            if shared is not None:
                args, kwargs = tuple(map(shared, args)), {key: shared(value) for key, value in kwargs.items()}
            refs.append(getattr(self._workers[rank], self._method_prefix + method_name).remote(*args, **kwargs))
        return RayPendingResults(refs, [self._worker_names[rank] for rank, _, _ in calls], method_name, self.timeout_s)

    # ---- colocation

    def spawn(self, prefix_set: Iterable[str]) -> dict[str, RayWorkerGroup]:
        """Return one group per worker class of a colocated class, all on this group's actors."""
        classes = colocated_classes(self.ray_cls_with_init)
        groups = {}
        for prefix in prefix_set:
            if prefix not in classes:
                raise ValueError(f"no worker {prefix!r} in this group; it holds {sorted(classes)}")
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


def colocated_classes(ray_cls_with_init: RayClassWithInitArgs | None) -> dict[str, type]:
    """Return the worker classes that a colocated class holds, by prefix; empty for a plain class, or none."""
    held = None if ray_cls_with_init is None else ray_cls_with_init.worker_class
    classes: dict[str, type] = getattr(held, "colocated_classes", {})
    return classes


class _Shared:
    """Puts an argument that several workers receive into the object store once."""

    def __init__(self, calls: list[tuple[int, tuple[Any, ...], dict[str, Any]]]) -> None:
        seen: dict[int, int] = {}
        for _, args, kwargs in calls:
            for value in (*args, *kwargs.values()):
                seen[id(value)] = seen.get(id(value), 0) + 1
        self._uses = seen
        self._refs: dict[int, Any] = {}

    def __call__(self, value: Any) -> Any:
        if isinstance(value, _SHARED_ARGUMENT_TYPES) or self._uses[id(value)] < 2:
            return value
        if id(value) not in self._refs:
            self._refs[id(value)] = ray.put(value)
        return self._refs[id(value)]


@ray.remote(num_cpus=0)
def _address_and_port(port_range: Sequence[int] | None) -> tuple[str, int]:
    return ray.util.get_node_ip_address(), find_free_port("", port_range)


@dataclass(frozen=True)
class _Rendezvous:
    """Where rank 0 is to listen, as far as the caller says."""

    address: str | None
    port: int | str | None
    port_range: Sequence[int] | None

    def at(self, slots: list[Slot]) -> tuple[str, int]:
        """Return address and port of rank 0: loopback when all ranks share a node, so that nothing listens outside."""
        if self.address is not None and self.port is not None:
            return self.address, int(self.port)
        first = slots[0]
        nodes = {node_of(slot.placement_group, slot.bundle) for slot in slots}
        here = ray.get_runtime_context().get_node_id()
        if nodes == {here}:
            address, port = "127.0.0.1", find_free_port("127.0.0.1", self.port_range)
        else:
            where = PlacementGroupSchedulingStrategy(first.placement_group, placement_group_bundle_index=first.bundle)
            address, port = ray.get(_address_and_port.options(scheduling_strategy=where).remote(self.port_range), timeout=120)
            address = "127.0.0.1" if len(nodes) == 1 else address
        return address, port if self.port is None else int(self.port)
