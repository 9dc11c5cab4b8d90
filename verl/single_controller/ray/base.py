"""Everything of the Ray backend under verl's import path."""

from verl.single_controller.base import ClassWithInitArgs, ResourcePool, Worker, WorkerGroup
from verl.single_controller.ray.actor_class import RayClassWithInitArgs
from verl.single_controller.ray.colocated import (
    create_colocated_worker_cls,
    create_colocated_worker_cls_fused,
    create_colocated_worker_raw_cls,
)
from verl.single_controller.ray.func_generator import func_generator
from verl.single_controller.ray.resource_pool import (
    RayResourcePool,
    SubRayResourcePool,
    merge_resource_pool,
    sort_placement_group_by_node_ip,
    split_resource_pool,
)
from verl.single_controller.ray.resource_pool_manager import ResourcePoolManager
from verl.single_controller.ray.worker_group import RayWorkerGroup

__all__ = [
    "ClassWithInitArgs", "RayClassWithInitArgs", "RayResourcePool", "RayWorkerGroup", "ResourcePool", "ResourcePoolManager",
    "SubRayResourcePool", "Worker", "WorkerGroup", "create_colocated_worker_cls", "create_colocated_worker_cls_fused",
    "create_colocated_worker_raw_cls", "func_generator", "merge_resource_pool", "sort_placement_group_by_node_ip", "split_resource_pool",
]  # fmt: skip
