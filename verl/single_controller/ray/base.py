"""verl's import path."""

from verl.compat.colocated import (
    RayClassWithInitArgs,
    create_colocated_worker_cls,
    create_colocated_worker_cls_fused,
    create_colocated_worker_raw_cls,
)
from verl.compat.controller import ResourcePool, Worker
from verl.compat.resource_pools import (
    RayResourcePool,
    ResourcePoolManager,
    SubRayResourcePool,
    merge_resource_pool,
    split_resource_pool,
)
from verl.compat.worker_group import RayWorkerGroup, func_generator
from verl.single_controller.ray.resource_pool import sort_placement_group_by_node_ip
from verl.single_controller.worker_group import ClassWithInitArgs, WorkerGroup

__all__ = [
    "ClassWithInitArgs", "RayClassWithInitArgs", "RayResourcePool", "RayWorkerGroup", "ResourcePool",
    "ResourcePoolManager",
    "SubRayResourcePool", "Worker", "WorkerGroup", "create_colocated_worker_cls",
    "create_colocated_worker_cls_fused",
    "create_colocated_worker_raw_cls", "func_generator", "merge_resource_pool",
    "sort_placement_group_by_node_ip", "split_resource_pool",
]  # fmt: skip
