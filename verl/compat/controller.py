"""verl's workers: device meshes, several workers in one process, execution of functions sent by the
caller, processes per node.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import Any

from verl.compat.decorator import Dispatch, Execute, register
from verl.single_controller.worker import Worker as PlainWorker
from verl.single_controller.worker import find_free_port
from verl.single_controller.worker_group import (
    ArgumentLostError,
    ClassWithInitArgs,
    WorkerDiedError,
    WorkerGroup,
)
from verl.single_controller.worker_group import ResourcePool as PlainPool

__all__ = [
    "ArgumentLostError", "ClassWithInitArgs", "ResourcePool", "Worker", "WorkerDiedError", "WorkerGroup",
    "WorkerHelper", "find_free_port",
]  # fmt: skip

logger = logging.getLogger(__name__)


class WorkerHelper:
    """Address and free port of the node, for setting up a separate process group."""

    @staticmethod
    def _get_node_ip() -> str:
        if os.environ.get("WG_BACKEND") != "ray":
            return "127.0.0.1"
        import ray

        return str(ray.util.get_node_ip_address())

    @staticmethod
    def _get_free_port() -> int:
        return find_free_port()

    def get_available_master_addr_port(self) -> tuple[str, str]:
        """Return this node's address and a port that is currently free on it."""
        return self._get_node_ip(), str(self._get_free_port())


class Worker(PlainWorker, WorkerHelper):
    """One rank of a worker group, with the additional interface of verl's workers."""

    fused_worker_attr_name = "fused_worker_dict"

    def __init__(self, cuda_visible_devices: str | None = None) -> None:
        if cuda_visible_devices is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = cuda_visible_devices
        super().__init__()
        self._local_rank = int(os.environ.get("LOCAL_RANK", "0"))
        self._local_world_size = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        self._dispatch_dp_rank: dict[str, int] = {}
        self._collect_dp_rank: dict[str, bool] = {}
        self.fused_worker_dict: dict[str, Worker] = {}

    @classmethod
    def env_keys(cls) -> list[str]:
        """Return the environment variables that define a worker's rank and visible devices."""
        return [
            "WORLD_SIZE",
            "RANK",
            "LOCAL_WORLD_SIZE",
            "LOCAL_RANK",
            "MASTER_ADDR",
            "MASTER_PORT",
            "CUDA_VISIBLE_DEVICES",
        ]

    @property
    def local_rank(self) -> int:
        """Index of this worker's device among the devices it sees."""
        return self._local_rank

    def get_master_addr_port(self) -> tuple[str, str]:
        """Return address and port of rank 0 for `torch.distributed`."""
        return os.environ.get("MASTER_ADDR", "127.0.0.1"), os.environ.get("MASTER_PORT", "0")

    def get_fused_worker_by_name(self, worker_name: str) -> Worker | None:
        """Return the worker under that key in the same process (see `create_colocated_worker_cls`),
        or None.
        """
        return self.fused_worker_dict.get(worker_name)

    def print_rank0(self, *args: Any) -> None:
        """Log on rank 0 only."""
        if self.rank == 0:
            logger.info(" ".join(str(arg) for arg in args))

    def _register_dispatch_collect_info(self, mesh_name: str, dp_rank: int, is_collect: bool) -> None:
        """Register which part of a batch this worker gets in a named mesh, and whether its result
        is collected.
        """
        if mesh_name in self._dispatch_dp_rank:
            raise ValueError(f"mesh_name {mesh_name} has been registered")
        self._dispatch_dp_rank[mesh_name] = dp_rank
        self._collect_dp_rank[mesh_name] = is_collect

    def get_dispatch_collect(self) -> dict[str, dict[str, Any]]:
        """Return the registered `dispatch_dp_rank` and `collect_dp_rank`, each by mesh."""
        return {
            "dispatch_dp_rank": dict(self._dispatch_dp_rank),
            "collect_dp_rank": dict(self._collect_dp_rank),
        }

    def set_dispatch_collect(
        self, mesh_name: str, dispatch_dp_rank: dict[str, int], collect_dp_rank: dict[str, bool]
    ) -> None:
        """Register the mesh of an inner worker (its `get_dispatch_collect()`; of several meshes the
        last) as `mesh_name`.

        Raises AssertionError for a mesh that is already registered.
        """
        assert mesh_name not in self._dispatch_dp_rank, (
            f"{mesh_name} is already registered: {sorted(self._dispatch_dp_rank)}"
        )
        if dispatch_dp_rank:
            self._dispatch_dp_rank[mesh_name] = list(dispatch_dp_rank.values())[-1]
        if collect_dp_rank:
            self._collect_dp_rank[mesh_name] = list(collect_dp_rank.values())[-1]

    def query_collect_info(self, mesh_name: str) -> bool:
        """Return whether this worker's result is collected in a mesh. Raise AssertionError for an
        unregistered mesh.
        """
        return bool(self._known_mesh(self._collect_dp_rank, mesh_name))

    def _known_mesh(self, table: dict[str, Any], mesh_name: str) -> Any:
        assert mesh_name in table, (
            f"{mesh_name} is not registered in {type(self).__name__}: call "
            f"_register_dispatch_collect_info first; known: {sorted(table)}"
        )
        return table[mesh_name]

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def _query_dispatch_info(self, mesh_name: str) -> int:
        return int(self._known_mesh(self._dispatch_dp_rank, mesh_name))

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def _query_collect_info(self, mesh_name: str) -> bool:
        return self.query_collect_info(mesh_name)

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO_WITH_FUNC)
    def execute_with_func_generator(self, func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run `func(worker, ...)` on every worker with its share of the batch."""
        return func(self, *args, **kwargs)

    @register(dispatch_mode=Dispatch.ALL_TO_ALL, execute_mode=Execute.RANK_ZERO)
    def execute_func_rank_zero(self, func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run `func(...)` on rank 0."""
        return func(*args, **kwargs)


class ResourcePool(PlainPool):
    """Number of worker processes on each node; every node has `n_gpus_per_node` devices."""

    def __init__(
        self,
        process_on_nodes: list[int] | None = None,
        max_colocate_count: int = 10,
        n_gpus_per_node: int = 8,
    ) -> None:
        super().__init__(process_on_nodes, max_colocate_count)
        self.n_gpus_per_node = n_gpus_per_node

    def add_node(self, process_count: int) -> None:
        """Append a node with this many processes."""
        self._store.append(process_count)

    def __call__(self) -> list[int]:
        """Return the processes per node, as `store`."""
        return self._store

    def local_world_size_list(self) -> list[int]:
        """Return for every rank the number of processes on its node."""
        return [size for size in self._store for _ in range(size)]

    def local_rank_list(self) -> list[int]:
        """Return for every rank its position on its node."""
        return [rank for size in self._store for rank in range(size)]
