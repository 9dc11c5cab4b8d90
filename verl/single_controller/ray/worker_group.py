"""A worker group whose workers are Ray actors."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

import ray
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from verl.single_controller.ray.actor_class import RayClassWithInitArgs
from verl.single_controller.ray.pending import RayPendingResults
from verl.single_controller.ray.resource_pool import RayResourcePool, Slot, node_of
from verl.single_controller.worker import find_free_port
from verl.single_controller.worker_group import DEFAULT_TIMEOUT_S, WorkerDiedError, WorkerGroup

SYSTEM_ENV = (
    "WORLD_SIZE", "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "RAY_LOCAL_RANK", "RAY_LOCAL_WORLD_SIZE",
    "MASTER_ADDR", "MASTER_PORT",
    "WG_PREFIX", "WG_BACKEND",
)  # fmt: skip
_SHARED_ARGUMENT_TYPES = (str, int, float, bool, type(None), ray.ObjectRef)


class RayWorkerGroup(WorkerGroup):
    """One actor per rank of a resource pool.

    Args:
        resource_pool: pool in which the actors run.
        ray_cls_with_init: their class and constructor arguments.
        name_prefix: start of the actors' names; random when None.
        worker_env: environment variables for the workers, e.g. OMP_NUM_THREADS.
        timeout_s: limit of every wait for a result, in seconds.
        peers: pools whose processes connect to rank 0 as well, which then has an address that all
            of them reach.

    Raises ValueError when `worker_env` sets a variable that the group sets itself; TimeoutError
    when resources are not available in time.
    """

    def __init__(
        self,
        resource_pool: RayResourcePool,
        ray_cls_with_init: RayClassWithInitArgs,
        *,
        name_prefix: str | None = None,
        worker_env: dict[str, str] | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        peers: Sequence[RayResourcePool] = (),
    ) -> None:
        super().__init__(resource_pool, timeout_s=timeout_s)
        self._peers = peers
        self._begin(name_prefix)
        self._start(resource_pool, ray_cls_with_init, self._checked_env(worker_env or {}))
        self._bind_worker_methods(ray_cls_with_init.worker_class)

    def _begin(self, name_prefix: str | None) -> None:
        self.name_prefix = name_prefix if name_prefix is not None else uuid.uuid4().hex[:6]
        self._owned = False
        self._rendezvous: tuple[str, int] | None = None
        self._workers: list[Any] = []
        self._worker_names: list[str] = []

    @staticmethod
    def _checked_env(worker_env: dict[str, str]) -> dict[str, str]:
        reserved_names = sorted(set(worker_env) & set(SYSTEM_ENV))
        if reserved_names:
            raise ValueError(
                f"worker_env may not set {', '.join(reserved_names)}: the worker group sets these itself"
            )
        return {key: str(value) for key, value in worker_env.items()}

    def _slots(self, pool: RayResourcePool) -> list[Slot]:
        return pool.slots()

    def _use_gpu(self, pool: RayResourcePool) -> bool:
        return pool.use_gpu

    def _find_rendezvous(self, slots: list[Slot]) -> tuple[str, int]:
        return find_rendezvous(slots, peers=[slot for pool in self._peers for slot in pool.slots()])

    def _start(self, pool: RayResourcePool, spec: RayClassWithInitArgs, worker_env: dict[str, str]) -> None:
        if not isinstance(pool, RayResourcePool):
            raise ValueError(
                f"RayWorkerGroup needs a RayResourcePool to start workers, got {type(pool).__name__}"
            )
        if pool.world_size < 1:
            raise ValueError(f"the resource pool has no processes: process_on_nodes={pool.store}")
        slots = self._slots(pool)
        self._rendezvous = address, port = self._find_rendezvous(slots)
        pool.acquire(self)
        self._owned = True
        on_gpu = self._use_gpu(pool)
        class_name = spec.worker_class.__name__
        unique = uuid.uuid4().hex[:6]
        for rank, slot in enumerate(slots):
            env = {
                **worker_env,
                "WORLD_SIZE": str(len(slots)),
                "RANK": str(rank),
                # Ray shows an actor its own GPU alone.
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
        """Kill this group's actors; the pool's placement groups are removed with its last group."""
        workers = self._workers
        self._workers = []
        if not self._owned:
            return
        self._owned = False
        if ray.is_initialized():
            for worker in workers:
                ray.kill(worker, no_restart=True)
        assert isinstance(self.resource_pool, RayResourcePool)
        self.resource_pool.release(self)

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

    def _submit(
        self, method_name: str, calls: list[tuple[int, tuple[Any, ...], dict[str, Any]]]
    ) -> RayPendingResults:
        if not self._workers:
            raise WorkerDiedError(f"cannot call {method_name}: this worker group has been shut down")
        shared = _Shared(calls) if len(calls) > 1 else None
        refs = []
        for rank, args, kwargs in calls:
            if shared is not None:
                args = tuple(map(shared, args))
                kwargs = {key: shared(value) for key, value in kwargs.items()}
            refs.append(getattr(self._workers[rank], method_name).remote(*args, **kwargs))
        return RayPendingResults(
            refs, [self._worker_names[rank] for rank, _, _ in calls], method_name, self.timeout_s
        )


class _Shared:
    """Puts an argument that several workers receive into the object store once."""

    def __init__(self, calls: list[tuple[int, tuple[Any, ...], dict[str, Any]]]) -> None:
        use_counts: dict[int, int] = {}
        for _, args, kwargs in calls:
            for value in (*args, *kwargs.values()):
                use_counts[id(value)] = use_counts.get(id(value), 0) + 1
        self._uses = use_counts
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


def find_rendezvous(
    slots: list[Slot],
    address: str | None = None,
    port: int | str | None = None,
    port_range: Sequence[int] | None = None,
    peers: Sequence[Slot] = (),
) -> tuple[str, int]:
    """Return address and port of rank 0: loopback when all ranks and peers share a node, so that no
    port is open to the network.

    Args:
        slots: slots of the ranks.
        address: address of rank 0, given together with its port.
        port: port of rank 0.
        port_range: `[begin, end)` to take a free port from.
        peers: slots of other processes that connect to rank 0.
    """
    if address is not None and port is not None:
        return address, int(port)
    first = slots[0]
    nodes = {node_of(slot.placement_group, slot.bundle) for slot in (*slots, *peers)}
    here = ray.get_runtime_context().get_node_id()
    if nodes == {here}:
        master_address = "127.0.0.1"
        free = find_free_port("127.0.0.1", port_range)
    else:
        where = PlacementGroupSchedulingStrategy(
            first.placement_group, placement_group_bundle_index=first.bundle
        )
        master_address, free = ray.get(
            _address_and_port.options(scheduling_strategy=where).remote(port_range), timeout=120
        )
        master_address = "127.0.0.1" if len(nodes) == 1 else master_address
    return master_address, free if port is None else int(port)
