"""The Ray backend: every worker an actor, placed by placement groups, on one node or many."""

from verl.single_controller.ray.base import (
    RayClassWithInitArgs,
    RayResourcePool,
    RayWorkerGroup,
    ResourcePoolManager,
    SubRayResourcePool,
    create_colocated_worker_cls,
    create_colocated_worker_cls_fused,
    create_colocated_worker_raw_cls,
    merge_resource_pool,
    split_resource_pool,
)

__all__ = [
    "RayClassWithInitArgs", "RayResourcePool", "RayWorkerGroup", "ResourcePoolManager", "SubRayResourcePool",
    "create_colocated_worker_cls", "create_colocated_worker_cls_fused", "create_colocated_worker_raw_cls", "merge_resource_pool",
    "split_resource_pool",
]  # fmt: skip
