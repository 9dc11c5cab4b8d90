"""The base class of everything that runs in a worker process."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Sequence
from typing import Any

from verl.single_controller.base.decorator import Dispatch, Execute, register

logger = logging.getLogger(__name__)


def find_free_port(host: str = "", port_range: Sequence[int] | None = None) -> int:
    """Return a TCP port that is free on this machine now, the first one of `[begin, end)` when a range is given.

    Raises RuntimeError when the range has none.
    """
    for port in (0,) if port_range is None else range(*port_range):
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
            try:
                listener.bind((host, port))
            except OSError:
                if port_range is None:
                    raise
                continue
            return int(listener.getsockname()[1])
    raise RuntimeError(f"no free port in the range {port_range}; give a wider one")


def _node_address() -> str:
    if os.environ.get("WG_BACKEND") != "ray":
        return "127.0.0.1"
    import ray

    return str(ray.util.get_node_ip_address())


class WorkerHelper:
    """What a process knows of its node, for a process group of one's own."""

    @staticmethod
    def _get_node_ip() -> str:
        return _node_address()

    @staticmethod
    def _get_free_port() -> int:
        return find_free_port()

    def get_available_master_addr_port(self) -> tuple[str, str]:
        """Return this node's address and a port that is free on it now."""
        return self._get_node_ip(), str(self._get_free_port())


class Worker(WorkerHelper):
    """One rank of a worker group.

    The controller sets RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT before a worker starts, so
    `torch.distributed.init_process_group` works without arguments. LOCAL_RANK is the index of this worker's device among those
    it sees: with Ray and GPUs every process sees one, and it is 0. Outside a controller a worker is rank 0 of 1.
    """

    fused_worker_attr_name = "fused_worker_dict"

    def __init__(self, cuda_visible_devices: str | None = None) -> None:
        if cuda_visible_devices is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = cuda_visible_devices
        self._rank = int(os.environ.get("RANK", "0"))
        self._world_size = int(os.environ.get("WORLD_SIZE", "1"))
        self._local_rank = int(os.environ.get("LOCAL_RANK", "0"))
        self._local_world_size = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        self._dispatch_dp_rank: dict[str, int] = {}
        self._collect_dp_rank: dict[str, bool] = {}
        self.fused_worker_dict: dict[str, Worker] = {}

    @classmethod
    def env_keys(cls) -> list[str]:
        """Return the environment variables that say which rank a worker is and what it sees."""
        return ["WORLD_SIZE", "RANK", "LOCAL_WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "CUDA_VISIBLE_DEVICES"]

    def close(self) -> None:
        """End what the worker has started outside this process. A group in this process calls it; elsewhere the process itself is ended."""

    @property
    def rank(self) -> int:
        """Position in the worker group, from 0."""
        return self._rank

    @property
    def world_size(self) -> int:
        """Number of workers of the group."""
        return self._world_size

    @property
    def local_rank(self) -> int:
        """Index of this worker's device among the devices it sees."""
        return self._local_rank

    def get_master_addr_port(self) -> tuple[str, str]:
        """Return where rank 0 listens for `torch.distributed`."""
        return os.environ.get("MASTER_ADDR", "127.0.0.1"), os.environ.get("MASTER_PORT", "0")

    def get_cuda_visible_devices(self) -> str:
        """Return CUDA_VISIBLE_DEVICES of this process, or "not set"."""
        return os.environ.get("CUDA_VISIBLE_DEVICES", "not set")

    def get_fused_worker_by_name(self, worker_name: str) -> Worker | None:
        """Return the worker under that key in the same process (see `create_colocated_worker_cls`), or None."""
        return self.fused_worker_dict.get(worker_name)

    def print_rank0(self, *args: Any) -> None:
        """Log on rank 0 only."""
        if self.rank == 0:
            logger.info(" ".join(str(arg) for arg in args))

    def _register_dispatch_collect_info(self, mesh_name: str, dp_rank: int, is_collect: bool) -> None:
        """Say which part of a batch this worker takes in a named mesh, and whether its result counts."""
        if mesh_name in self._dispatch_dp_rank:
            raise ValueError(f"mesh_name {mesh_name} has been registered")
        self._dispatch_dp_rank[mesh_name] = dp_rank
        self._collect_dp_rank[mesh_name] = is_collect

    def get_dispatch_collect(self) -> dict[str, dict[str, Any]]:
        """Return what this worker registered: `dispatch_dp_rank` and `collect_dp_rank`, each by mesh."""
        return {"dispatch_dp_rank": dict(self._dispatch_dp_rank), "collect_dp_rank": dict(self._collect_dp_rank)}

    def set_dispatch_collect(self, mesh_name: str, dispatch_dp_rank: dict[str, int], collect_dp_rank: dict[str, bool]) -> None:
        """Take over, under `mesh_name`, the mesh of an inner worker (its `get_dispatch_collect()`; of several meshes the last).

        Raises AssertionError for a mesh that is registered already.
        """
        assert mesh_name not in self._dispatch_dp_rank, f"{mesh_name} is already registered: {sorted(self._dispatch_dp_rank)}"
        if dispatch_dp_rank:
            self._dispatch_dp_rank[mesh_name] = list(dispatch_dp_rank.values())[-1]
        if collect_dp_rank:
            self._collect_dp_rank[mesh_name] = list(collect_dp_rank.values())[-1]

    def query_collect_info(self, mesh_name: str) -> bool:
        """Return whether this worker's result counts in a mesh. Raises AssertionError for a mesh it does not know."""
        return bool(self._known_mesh(self._collect_dp_rank, mesh_name))

    def _known_mesh(self, table: dict[str, Any], mesh_name: str) -> Any:
        assert mesh_name in table, (
            f"{mesh_name} is not registered in {type(self).__name__}: call _register_dispatch_collect_info first; known: {sorted(table)}"
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
