"""Named resource pools, and which role works in which."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field

import ray

from verl.single_controller.ray.resource_pool import RayResourcePool


@dataclass
class ResourcePoolManager:
    """The pools of a run, made together and looked up by role.

    Attributes:
        resource_pool_spec: processes per node, by pool name.
        mapping: pool name by role.
        max_colocate_count: worker groups that may share a device.
        resource_pool_dict: the pools by name, filled by `create_resource_pool`.
        use_gpu: every process holds a GPU; off for a cluster without any.
    """

    resource_pool_spec: Mapping[str, list[int]]
    mapping: Mapping[Hashable, str]
    max_colocate_count: int = 3
    resource_pool_dict: dict[str, RayResourcePool] = field(default_factory=dict)
    use_gpu: bool = True

    def create_resource_pool(self) -> None:
        """Make every pool of the specification; their placement groups come with the first worker group.

        Raises ValueError when the cluster has fewer free GPUs than the pools want.
        """
        if self.use_gpu:
            self._check_gpus()
        for name, process_on_nodes in self.resource_pool_spec.items():
            self.resource_pool_dict[name] = RayResourcePool(
                process_on_nodes=list(process_on_nodes), use_gpu=self.use_gpu, max_colocate_count=self.max_colocate_count, name_prefix=name
            )

    def get_resource_pool(self, role: Hashable) -> RayResourcePool:
        """Return the pool that a role works in. Raises KeyError naming the roles, or the pools, that there are."""
        if role not in self.mapping:
            raise KeyError(f"no resource pool for {role}: the mapping has {[str(known) for known in self.mapping]}")
        name = self.mapping[role]
        if name not in self.resource_pool_dict:
            raise KeyError(
                f"{role} is mapped to pool {name!r}; pools made so far: {sorted(self.resource_pool_dict)}, specified: "
                f"{sorted(self.resource_pool_spec)} (create_resource_pool makes them)"
            )
        return self.resource_pool_dict[name]

    def get_n_gpus(self) -> int:
        """Return the number of processes of all pools, each on a device of its own."""
        return sum(sum(process_on_nodes) for process_on_nodes in self.resource_pool_spec.values())

    def _check_gpus(self) -> None:
        free, wanted = ray.available_resources().get("GPU", 0), self.get_n_gpus()
        if free < wanted:
            raise ValueError(
                f"the resource pools {dict(self.resource_pool_spec)} want {wanted} GPUs, the cluster has {free:g} free; ask for fewer, or "
                "pass use_gpu=False to run on CPUs"
            )
