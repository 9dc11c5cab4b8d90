"""Resource pools of the Ray backend: placement groups, one per node."""

from __future__ import annotations

import logging
import uuid
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import GetTimeoutError
from ray.util.placement_group import (
    PlacementGroup,
    placement_group,
    placement_group_table,
    remove_placement_group,
)

from verl.single_controller.worker_group import ResourcePool

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Slot:
    """The bundle of a placement group in which one rank runs, and its position among the ranks of
    that node.
    """

    placement_group: PlacementGroup
    bundle: int
    local_rank: int
    local_world_size: int


class RayResourcePool(ResourcePool):
    """Placement groups that reserve the resources of `process_on_nodes` processes.

    A bundle reserves `cpus_per_process` CPUs and, with `use_gpu`, one GPU; worker groups that share
    the pool share its bundles, and each takes 1 / `max_colocate_count` of the GPU. The groups are
    made on first use and removed with the last worker group.

    Args:
        process_on_nodes: processes per node.
        use_gpu: reserve one GPU per process.
        max_colocate_count: worker groups that may share a GPU.
        cpus_per_process: CPUs reserved per bundle; workers themselves request none, so colocation
            never waits for CPUs.
        timeout_s: limit of the wait for the resources, in seconds.
    """

    def __init__(
        self,
        process_on_nodes: list[int] | None = None,
        use_gpu: bool = True,
        *,
        max_colocate_count: int = 10,
        cpus_per_process: float = 1.0,
        timeout_s: float = 300.0,
    ) -> None:
        super().__init__(process_on_nodes, max_colocate_count)
        self.use_gpu = use_gpu
        self.name_prefix = uuid.uuid4().hex[:6]
        self.lifetime: str | None = None  # of the placement groups: that of this driver
        self.cpus_per_process = cpus_per_process
        self.timeout_s = timeout_s
        self.pgs: list[PlacementGroup] | None = None
        self._users: set[int] = set()

    def bundle(self) -> dict[str, float]:
        """Return the resources reserved per process."""
        return {"CPU": self.cpus_per_process} | ({"GPU": 1.0} if self.use_gpu else {})

    def get_placement_groups(self, strategy: str = "STRICT_PACK") -> list[PlacementGroup]:
        """Return the placement groups, made on the first call.

        Raises TimeoutError, naming requested and available resources, when the resources are not
        available in time.
        """
        if self.pgs is not None:
            return self.pgs
        prefix = f"{self.name_prefix}verl_group_{'_'.join(map(str, self.store))}:"
        groups = [
            placement_group(
                [self.bundle()] * size, strategy=strategy, name=f"{prefix}{i}", lifetime=self.lifetime
            )
            for i, size in enumerate(self.store)
        ]
        try:
            ray.get([group.ready() for group in groups], timeout=self.timeout_s)
        except GetTimeoutError as error:
            for group in groups:
                remove_placement_group(group)
            raise TimeoutError(
                f"no room for {self.store} processes (per node) of {self.bundle()} each within "
                f"{self.timeout_s:g} s; the cluster has {ray.cluster_resources()}, free now "
                f"{ray.available_resources()}: ask for fewer processes, set cpus_per_process, or "
                "give ray.init more"
            ) from error
        self.pgs = sort_placement_group_by_node_ip(groups)
        return self.pgs

    def slots(self, strategy: str = "STRICT_PACK") -> list[Slot]:
        """Return the slot of every rank."""
        groups = self.get_placement_groups(strategy)
        return [Slot(group, i, i, group.bundle_count) for group in groups for i in range(group.bundle_count)]

    def acquire(self, user: object) -> None:
        """Register a worker group that uses the pool."""
        self._users.add(id(user))

    def release(self, user: object) -> None:
        """Unregister a worker group; the placement groups are removed with the last one."""
        self._users.discard(id(user))
        if not self._users:
            self.shutdown()

    def shutdown(self) -> None:
        """Remove the placement groups of this pool; they are made again when needed."""
        groups = self.pgs
        self.pgs = None
        for group in groups or []:
            if ray.is_initialized():
                remove_placement_group(group)


class SubRayResourcePool(RayResourcePool):
    """Consecutive ranks of another pool, in the same placement groups."""

    def __init__(self, parent: RayResourcePool, start_bundle_index: int, subgroup_world_size: int) -> None:
        super().__init__(use_gpu=parent.use_gpu, max_colocate_count=parent.max_colocate_count)
        self.parent = parent
        self.start_bundle_index = start_bundle_index
        self.subgroup_world_size = subgroup_world_size

    @property
    def world_size(self) -> int:
        """Processes of this part."""
        return self.subgroup_world_size

    def get_placement_groups(self, strategy: str = "STRICT_PACK") -> list[PlacementGroup]:
        """Return the parent's placement groups."""
        return self.parent.get_placement_groups(strategy)

    def slots(self, strategy: str = "STRICT_PACK") -> list[Slot]:
        """Return the slot of every rank; local ranks count from 0 within this part."""
        mine = self.parent.slots(strategy)[
            self.start_bundle_index : self.start_bundle_index + self.subgroup_world_size
        ]
        return _renumbered(mine)

    def acquire(self, user: object) -> None:
        """Register a worker group with the parent pool."""
        self.parent.acquire(user)

    def release(self, user: object) -> None:
        """Unregister a worker group from the parent pool."""
        self.parent.release(user)

    def shutdown(self) -> None:
        """Do nothing: the placement groups are the parent's."""


def _renumbered(slots: list[Slot]) -> list[Slot]:
    sizes: dict[Any, int] = {}
    for slot in slots:
        sizes[slot.placement_group.id] = sizes.get(slot.placement_group.id, 0) + 1
    next_ranks: dict[Any, int] = {}
    renumbered = []
    for slot in slots:
        key = slot.placement_group.id
        renumbered.append(Slot(slot.placement_group, slot.bundle, next_ranks.get(key, 0), sizes[key]))
        next_ranks[key] = next_ranks.get(key, 0) + 1
    return renumbered


def node_of(group: PlacementGroup, bundle: int = 0) -> str:
    """Return the id of the node of a bundle."""
    node: str = placement_group_table(group)["bundles_to_node_id"][bundle]
    return node


def sort_placement_group_by_node_ip(pgs: list[PlacementGroup]) -> list[PlacementGroup]:
    """Return placement groups in order of their node's address, so that ranks are the same in every
    run.
    """
    if len(pgs) < 2:
        return pgs
    addresses = {node["NodeID"]: node["NodeManagerAddress"] for node in ray.nodes()}
    return sorted(pgs, key=lambda group: addresses[node_of(group)])
