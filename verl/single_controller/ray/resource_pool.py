"""Resource pools of the Ray backend: placement groups, one a node."""

from __future__ import annotations

import logging
import uuid
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import GetTimeoutError
from ray.util.placement_group import PlacementGroup, placement_group, placement_group_table, remove_placement_group

from verl.single_controller.base.worker_group import ResourcePool

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Slot:
    """Where one rank runs: a bundle of a placement group, and its place among the ranks of that node."""

    placement_group: PlacementGroup
    bundle: int
    local_rank: int
    local_world_size: int


class RayResourcePool(ResourcePool):
    """Placement groups that hold the resources of `process_on_nodes` processes.

    A bundle reserves `cpus_per_process` CPUs and, with `use_gpu`, one GPU; worker groups that share the pool share its bundles,
    and each takes 1 / `max_colocate_count` of the GPU. The groups are made on first use and removed with the last worker group.

    Args:
        process_on_nodes: processes per node.
        use_gpu: reserve a GPU a process.
        name_prefix: start of the placement groups' names.
        max_colocate_count: worker groups that may share a GPU.
        detached: placement groups outlive this driver.
        accelerator_type: custom resource that names the kind of GPU.
        cpus_per_process: CPUs a bundle reserves; workers themselves ask for none, so colocation never waits for CPUs.
        timeout_s: limit of the wait for the resources, in seconds.
    """

    def __init__(
        self,
        process_on_nodes: list[int] | None = None,
        use_gpu: bool = True,
        name_prefix: str | None = None,
        max_colocate_count: int = 10,
        detached: bool = False,
        accelerator_type: str | None = None,
        *,
        cpus_per_process: float = 1.0,
        timeout_s: float = 300.0,
    ) -> None:
        super().__init__(process_on_nodes, max_colocate_count)
        self.use_gpu = use_gpu
        self.name_prefix = name_prefix or uuid.uuid4().hex[:6]
        self.detached = detached
        self.accelerator_type = accelerator_type
        self.cpus_per_process = cpus_per_process
        self.timeout_s = timeout_s
        self.pgs: list[PlacementGroup] | None = None
        self._users: set[int] = set()

    def bundle(self) -> dict[str, float]:
        """Return the resources that one process reserves."""
        bundle: dict[str, float] = {"CPU": self.cpus_per_process}
        if self.use_gpu:
            bundle["GPU"] = 1
            if self.accelerator_type is not None:
                bundle[self.accelerator_type] = 1e-4
        return bundle

    def get_placement_groups(
        self, strategy: str = "STRICT_PACK", name: str | None = None, device_name: str | None = None
    ) -> list[PlacementGroup]:
        """Return the placement groups, made on the first call.

        Raises TimeoutError saying what was asked for and what the cluster has, when the resources do not come in time.
        """
        if self.pgs is not None:
            return self.pgs
        prefix = name or f"{self.name_prefix}verl_group_{'_'.join(map(str, self.store))}:"
        lifetime = "detached" if self.detached else None
        groups = [
            placement_group([self.bundle()] * size, strategy=strategy, name=f"{prefix}{i}", lifetime=lifetime)
            for i, size in enumerate(self.store)
        ]
        try:
            ray.get([group.ready() for group in groups], timeout=self.timeout_s)
        except GetTimeoutError as error:
            for group in groups:
                remove_placement_group(group)
            raise TimeoutError(
                f"no room for {self.store} processes (per node) of {self.bundle()} each within {self.timeout_s:g} s; the cluster has "
                f"{ray.cluster_resources()}, free now {ray.available_resources()}: ask for fewer processes, set cpus_per_process, "
                "or give ray.init more"
            ) from error
        self.pgs = sort_placement_group_by_node_ip(groups)
        return self.pgs

    def get_placement_group(self) -> PlacementGroup:
        """Return the placement group of the first node."""
        return self.get_placement_groups()[0]

    def slots(self, strategy: str = "STRICT_PACK") -> list[Slot]:
        """Return where every rank runs."""
        groups = self.get_placement_groups(strategy)
        return [Slot(group, i, i, group.bundle_count) for group in groups for i in range(group.bundle_count)]

    def split(self, split_size: int | list[int]) -> list[SubRayResourcePool]:
        """Cut the pool into parts; see `split_resource_pool`."""
        return split_resource_pool(self, split_size)

    def acquire(self, user: object) -> None:
        """Note that a worker group uses the pool."""
        self._users.add(id(user))

    def release(self, user: object) -> None:
        """Note that a worker group is done; the last one takes the placement groups with it."""
        self._users.discard(id(user))
        if not self._users:
            self.shutdown()

    def shutdown(self) -> None:
        """Remove the placement groups of this pool; a later use makes new ones."""
        groups, self.pgs = self.pgs, None
        for group in groups or []:
            if ray.is_initialized():
                remove_placement_group(group)


class SubRayResourcePool(RayResourcePool):
    """Consecutive ranks of another pool, in the same placement groups."""

    def __init__(self, parent: RayResourcePool, start_bundle_index: int, subgroup_world_size: int) -> None:
        super().__init__(
            use_gpu=parent.use_gpu,
            name_prefix=parent.name_prefix,
            max_colocate_count=parent.max_colocate_count,
            detached=parent.detached,
            cpus_per_process=parent.cpus_per_process,
            timeout_s=parent.timeout_s,
        )
        self.parent = parent
        self.start_bundle_index = start_bundle_index
        self.subgroup_world_size = subgroup_world_size

    @property
    def world_size(self) -> int:
        """Processes of this part."""
        return self.subgroup_world_size

    def get_placement_groups(
        self, strategy: str = "STRICT_PACK", name: str | None = None, device_name: str | None = None
    ) -> list[PlacementGroup]:
        """Return the parent's placement groups."""
        return self.parent.get_placement_groups(strategy, name, device_name)

    def slots(self, strategy: str = "STRICT_PACK") -> list[Slot]:
        """Return where every rank runs; local ranks count from 0 within this part."""
        mine = self.parent.slots(strategy)[self.start_bundle_index : self.start_bundle_index + self.subgroup_world_size]
        return _renumbered(mine)

    def acquire(self, user: object) -> None:
        """Note at the parent that a worker group uses it."""
        self.parent.acquire(user)

    def release(self, user: object) -> None:
        """Note at the parent that a worker group is done."""
        self.parent.release(user)

    def shutdown(self) -> None:
        """Do nothing: the placement groups are the parent's."""


class _MergedRayResourcePool(RayResourcePool):
    def __init__(self, parts: list[RayResourcePool]) -> None:
        first = parts[0]
        super().__init__([size for part in parts for size in part.store], first.use_gpu, first.name_prefix, first.max_colocate_count)
        self.parts = parts

    @property
    def world_size(self) -> int:
        return sum(part.world_size for part in self.parts)

    def get_placement_groups(
        self, strategy: str = "STRICT_PACK", name: str | None = None, device_name: str | None = None
    ) -> list[PlacementGroup]:
        return [group for part in self.parts for group in part.get_placement_groups(strategy)]

    def slots(self, strategy: str = "STRICT_PACK") -> list[Slot]:
        return [slot for part in self.parts for slot in part.slots(strategy)]

    def acquire(self, user: object) -> None:
        for part in self.parts:
            part.acquire(user)

    def release(self, user: object) -> None:
        for part in self.parts:
            part.release(user)

    def shutdown(self) -> None:
        for part in self.parts:
            part.shutdown()


def split_resource_pool(resource_pool: RayResourcePool, split_size: int | list[int]) -> list[SubRayResourcePool]:
    """Cut a pool into parts of `split_size` ranks, or of the sizes of a list.

    Raises AssertionError when the sizes do not add up to the pool.
    """
    total = resource_pool.world_size
    if isinstance(split_size, int):
        assert total % split_size == 0, f"split_size must be a divisor of world_size, got {split_size} and {total}"
        split_size = [split_size] * (total // split_size)
    assert sum(split_size) == total, f"split sizes must add up to world_size {total}, got {split_size}"
    starts = [sum(split_size[:i]) for i in range(len(split_size))]
    return [SubRayResourcePool(resource_pool, start, size) for start, size in zip(starts, split_size, strict=True)]


def merge_resource_pool(rp1: RayResourcePool, rp2: RayResourcePool) -> RayResourcePool:
    """Return a pool that spans both, in their placement groups. Raises AssertionError when they differ in kind."""
    for attribute in ("use_gpu", "max_colocate_count", "detached", "accelerator_type"):
        left, right = getattr(rp1, attribute), getattr(rp2, attribute)
        assert left == right, f"both pools must agree on {attribute}, got {left} and {right}"
    return _MergedRayResourcePool([rp1, rp2])


def _renumbered(slots: list[Slot]) -> list[Slot]:
    sizes: dict[Any, int] = {}
    for slot in slots:
        sizes[slot.placement_group.id] = sizes.get(slot.placement_group.id, 0) + 1
    seen: dict[Any, int] = {}
    renumbered = []
    for slot in slots:
        key = slot.placement_group.id
        renumbered.append(Slot(slot.placement_group, slot.bundle, seen.get(key, 0), sizes[key]))
        seen[key] = seen.get(key, 0) + 1
    return renumbered


def node_of(group: PlacementGroup, bundle: int = 0) -> str:
    """Return the id of the node that holds a bundle."""
    node: str = placement_group_table(group)["bundles_to_node_id"][bundle]
    return node


def sort_placement_group_by_node_ip(pgs: list[PlacementGroup]) -> list[PlacementGroup]:
    """Order placement groups by their node's address, so that ranks are the same in every run."""
    if len(pgs) < 2:
        return pgs
    addresses = {node["NodeID"]: node["NodeManagerAddress"] for node in ray.nodes()}
    return sorted(pgs, key=lambda group: addresses[node_of(group)])
