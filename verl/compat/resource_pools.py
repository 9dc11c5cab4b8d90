"""verl's resource pools: split, merged, and managed by name and role."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field

import ray
from ray.util.placement_group import PlacementGroup

from verl.single_controller.ray.resource_pool import RayResourcePool as Pool
from verl.single_controller.ray.resource_pool import Slot
from verl.single_controller.ray.resource_pool import SubRayResourcePool as SubPool


class RayResourcePool(Pool):
    """A pool with verl's arguments.

    Args:
        process_on_nodes: processes per node.
        use_gpu: reserve one GPU per process.
        name_prefix: start of the placement groups' names.
        max_colocate_count: worker groups that may share a GPU.
        detached: placement groups outlive this driver.
        accelerator_type: custom resource that names the kind of GPU.
        cpus_per_process, timeout_s: see the base class.
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
        super().__init__(
            process_on_nodes,
            use_gpu,
            max_colocate_count=max_colocate_count,
            cpus_per_process=cpus_per_process,
            timeout_s=timeout_s,
        )
        self.name_prefix = name_prefix or self.name_prefix
        self.lifetime = "detached" if detached else None
        self.accelerator_type = accelerator_type

    def bundle(self) -> dict[str, float]:
        """Return the resources reserved per process."""
        return super().bundle() | (
            {self.accelerator_type: 1e-4} if self.use_gpu and self.accelerator_type is not None else {}
        )

    def get_placement_groups(
        self, strategy: str = "STRICT_PACK", name: str | None = None, device_name: str | None = None
    ) -> list[PlacementGroup]:
        """Return the placement groups, made on the first call, with the prefix `name` if it is
        given.
        """
        self.name_prefix = name or self.name_prefix
        return super().get_placement_groups(strategy)

    def get_placement_group(self) -> PlacementGroup:
        """Return the placement group of the first node."""
        return self.get_placement_groups()[0]

    def split(self, split_size: int | list[int]) -> list[SubRayResourcePool]:
        """Split the pool; see `split_resource_pool`."""
        return split_resource_pool(self, split_size)


class SubRayResourcePool(SubPool):
    """Consecutive ranks of another pool, which may be split or merged again."""

    def __init__(self, parent: Pool, start_bundle_index: int, subgroup_world_size: int) -> None:
        super().__init__(parent, start_bundle_index, subgroup_world_size)
        self.lifetime, self.bundle = parent.lifetime, parent.bundle  # type: ignore[method-assign]


class _MergedRayResourcePool(Pool):
    def __init__(self, parts: list[Pool]) -> None:
        first = parts[0]
        super().__init__(
            [size for part in parts for size in part.store],
            first.use_gpu,
            max_colocate_count=first.max_colocate_count,
        )
        self.parts = parts

    @property
    def world_size(self) -> int:
        return sum(part.world_size for part in self.parts)

    def get_placement_groups(self, strategy: str = "STRICT_PACK") -> list[PlacementGroup]:
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


def split_resource_pool(resource_pool: Pool, split_size: int | list[int]) -> list[SubRayResourcePool]:
    """Split a pool into parts of `split_size` ranks, or of the listed sizes.

    Raises AssertionError when the sizes do not add up to the pool.
    """
    total = resource_pool.world_size
    if isinstance(split_size, int):
        assert total % split_size == 0, (
            f"split_size must be a divisor of world_size, got {split_size} and {total}"
        )
        split_size = [split_size] * (total // split_size)
    assert sum(split_size) == total, f"split sizes must add up to world_size {total}, got {split_size}"
    starts = [sum(split_size[:i]) for i in range(len(split_size))]
    return [
        SubRayResourcePool(resource_pool, start, size) for start, size in zip(starts, split_size, strict=True)
    ]


def merge_resource_pool(rp1: Pool, rp2: Pool) -> Pool:
    """Return a pool of the ranks of both, in their placement groups. Raise AssertionError when
    their resources or lifetimes differ.
    """
    kinds = [
        {"bundle": pool.bundle(), "max_colocate_count": pool.max_colocate_count, "lifetime": pool.lifetime}
        for pool in (rp1, rp2)
    ]
    assert kinds[0] == kinds[1], f"both pools must agree, got {kinds[0]} and {kinds[1]}"
    return _MergedRayResourcePool([rp1, rp2])


@dataclass
class ResourcePoolManager:
    """The pools of a run, created together and looked up by role.

    Attributes:
        resource_pool_spec: processes per node, by pool name.
        mapping: pool name by role.
        max_colocate_count: worker groups that may share a device.
        resource_pool_dict: the pools by name, filled by `create_resource_pool`.
        use_gpu: every process gets a GPU; False for a cluster without GPUs.
    """

    resource_pool_spec: Mapping[str, list[int]]
    mapping: Mapping[Hashable, str]
    max_colocate_count: int = 3
    resource_pool_dict: dict[str, RayResourcePool] = field(default_factory=dict)
    use_gpu: bool = True

    def create_resource_pool(self) -> None:
        """Create every pool of the specification; placement groups are made with a pool's first
        worker group.

        Raises ValueError when the cluster has fewer free GPUs than the pools need.
        """
        if self.use_gpu:
            self._check_gpus()
        for name, process_on_nodes in self.resource_pool_spec.items():
            self.resource_pool_dict[name] = RayResourcePool(
                process_on_nodes=list(process_on_nodes),
                use_gpu=self.use_gpu,
                max_colocate_count=self.max_colocate_count,
                name_prefix=name,
            )

    def get_resource_pool(self, role: Hashable) -> RayResourcePool:
        """Return the pool of a role. Raise KeyError naming the known roles or pools."""
        if role not in self.mapping:
            raise KeyError(
                f"no resource pool for {role}: the mapping has "
                f"{[str(mapped_role) for mapped_role in self.mapping]}"
            )
        name = self.mapping[role]
        if name not in self.resource_pool_dict:
            raise KeyError(
                f"{role} is mapped to pool {name!r}; pools made so far: "
                f"{sorted(self.resource_pool_dict)}, specified: {sorted(self.resource_pool_spec)} "
                "(create_resource_pool makes them)"
            )
        return self.resource_pool_dict[name]

    def get_n_gpus(self) -> int:
        """Return the number of GPUs of all pools, one per process."""
        return sum(sum(process_on_nodes) for process_on_nodes in self.resource_pool_spec.values())

    def _check_gpus(self) -> None:
        free = ray.available_resources().get("GPU", 0)
        required_gpus = self.get_n_gpus()
        if free < required_gpus:
            raise ValueError(
                f"the resource pools {dict(self.resource_pool_spec)} want {required_gpus} GPUs, "
                f"the cluster has {free:g} free; ask for fewer, or pass use_gpu=False to run on "
                "CPUs"
            )
