"""Where workers live: Ray actors on one node or many, or plain objects in this process."""

from __future__ import annotations

import logging
import os
import sys
from typing import TYPE_CHECKING, Any, Protocol

from verl.single_controller.worker_group import WorkerGroup
from verl.trainer.config import RunConfig
from verl.trainer.placement.pools import Devices

if TYPE_CHECKING:
    from verl.single_controller.ray.resource_pool import RayResourcePool

logger = logging.getLogger(__name__)

RAY_SYSTEM_CONFIG = {
    "health_check_failure_threshold": 60,
    # Our actors bring their own environment variables, so a worker started in advance would never be used.
    "prestart_worker_first_driver": False,
    # Ray keeps 100,000 finished tasks for a dashboard that a private cluster does not have: 50 KB more in its head process every step.
    "task_events_report_interval_ms": 0,
}
RAY_TOKEN_LOGGER = "ray._private.authentication.authentication_token_setup"
# Groups share the cores and say how many threads they use, so bundles only mark the node they are on.
BUNDLE_CPUS = 0.01
# A policy, its rollout engine and its critic.
WORKERS_PER_GROUP = 3


class ControllerError(ValueError):
    """A backend that cannot run what the config asks for."""


def _not_about_enabled_tokens(record: logging.LogRecord) -> bool:
    """Ray warns that its default, a cluster behind a token, is on; that it is off stays worth a warning."""
    return not record.getMessage().startswith("Token authentication is enabled")


class Controller(Protocol):
    """Starts worker groups and ends what it started."""

    parallel: bool
    device: str

    def threads_per_worker(self, groups_per_device: int) -> int:
        """CPU threads of one worker when so many groups work on every device at the same time."""
        ...

    def spawn(self, name: str, cls: type, devices: Devices, kwargs: dict[str, Any], max_concurrency: int = 1) -> WorkerGroup:
        """Start a worker `cls(**kwargs)` on each of the devices; `max_concurrency` calls may run at once in each."""
        ...

    def shutdown(self) -> None:
        """End what this controller started, and nothing else."""
        ...


def resolve_device(device: str) -> str:
    """`auto` is cuda when torch sees a GPU, else cpu. Raises ControllerError for cuda without a GPU."""
    import torch

    if device not in ("auto", "cpu", "cuda"):
        raise ControllerError(f"trainer.device={device!r}: expected auto, cpu or cuda")
    if device == "cuda" and not torch.cuda.is_available():
        raise ControllerError("trainer.device=cuda, but torch sees no GPU; use trainer.device=cpu or install a CUDA build of torch")
    return ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device


def import_path() -> str:
    """The folders of `sys.path` that are not the interpreter's own, so that workers of any cluster find the user's plug-ins."""
    own = (sys.prefix, sys.base_prefix)
    return os.pathsep.join(dict.fromkeys(os.path.abspath(folder) for folder in sys.path if not folder.startswith(own)))


def build_controller(config: RunConfig) -> Controller:
    """The backend that `trainer.controller` names."""
    device = resolve_device(config.trainer.device)
    if config.trainer.controller == "local":
        return LocalController(config, device)
    if config.trainer.controller == "ray":
        return RayController(config, device)
    raise ControllerError(f"trainer.controller={config.trainer.controller!r}: expected ray or local")


class LocalController:
    """Every worker in this process, one rank a group; for debugging and for machines without Ray."""

    parallel = False

    def __init__(self, config: RunConfig, device: str) -> None:
        if config.trainer.nnodes * config.trainer.n_gpus_per_node != 1:
            raise ControllerError(
                f"trainer.controller=local runs one rank, but trainer.nnodes={config.trainer.nnodes} and "
                f"trainer.n_gpus_per_node={config.trainer.n_gpus_per_node}; set both to 1 or use trainer.controller=ray"
            )
        if config.trainer.resource_pool == "dedicated":
            raise ControllerError("trainer.resource_pool=dedicated needs trainer.controller=ray: in one process groups take turns")
        self.device, self.timeout_s = device, config.trainer.worker_timeout_s

    def threads_per_worker(self, groups_per_device: int) -> int:
        """All cores: groups take turns."""
        return os.cpu_count() or 1

    def spawn(self, name: str, cls: type, devices: Devices, kwargs: dict[str, Any], max_concurrency: int = 1) -> WorkerGroup:
        """Build the worker here."""
        from verl.single_controller.local import LocalResourcePool, LocalWorkerGroup
        from verl.single_controller.worker_group import ClassWithInitArgs

        return LocalWorkerGroup(LocalResourcePool([devices.ranks]), ClassWithInitArgs(cls, **kwargs), timeout_s=self.timeout_s)

    def shutdown(self) -> None:
        """Nothing was started."""


class RayController:
    """Every worker a Ray actor; joins the cluster at `ray_init.address` (or RAY_ADDRESS), else starts a private one."""

    parallel = True

    def __init__(self, config: RunConfig, device: str) -> None:
        self.config, self.device = config, device
        self.pool: RayResourcePool | None = None
        self._start_ray()

    def _start_ray(self) -> None:
        import ray

        from verl.single_controller.ray.start import start_private_cluster

        logging.getLogger(RAY_TOKEN_LOGGER).addFilter(_not_about_enabled_tokens)
        self.owns_cluster = False
        if ray.is_initialized():
            return
        options, address = self.config.ray_init, self.config.ray_init.address or os.environ.get("RAY_ADDRESS")
        if address:
            try:
                ray.init(address=address, log_to_driver=True, logging_level=logging.WARNING)
            except (ConnectionError, ValueError) as error:
                raise ControllerError(
                    f"ray_init.address={address!r} (or RAY_ADDRESS): {error}; start the cluster, leave the address out for a private one, "
                    "or set RAY_AUTH_MODE=token when the cluster asks for a token"
                ) from error
        else:
            start_private_cluster(
                num_cpus=options.num_cpus or os.cpu_count(),
                object_store_memory=options.object_store_memory_mb and options.object_store_memory_mb * 2**20,
                log_to_driver=True,
                logging_level=logging.WARNING,
                _system_config=dict(RAY_SYSTEM_CONFIG),
            )
        self.owns_cluster = not address

    def threads_per_worker(self, groups_per_device: int) -> int:
        """The cores of a node, shared by the workers that work at the same time."""
        return max((os.cpu_count() or 1) // (groups_per_device * self.config.trainer.n_gpus_per_node), 1)

    def spawn(self, name: str, cls: type, devices: Devices, kwargs: dict[str, Any], max_concurrency: int = 1) -> WorkerGroup:
        """Start the actors on their part of the pool, colocated with all others there."""
        import ray

        from verl.single_controller.ray.actor_class import RayClassWithInitArgs
        from verl.single_controller.ray.worker_group import RayWorkerGroup

        init = RayClassWithInitArgs(ray.remote(cls), **kwargs)
        init.update_options({"max_concurrency": max_concurrency} if max_concurrency > 1 else {})
        threads = str(kwargs["num_threads"])
        return RayWorkerGroup(
            resource_pool=self._pool(devices),
            ray_cls_with_init=init,
            name_prefix=name,
            worker_env={"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads, "PYTHONPATH": import_path()},
            timeout_s=self.config.trainer.worker_timeout_s,
        )

    def _pool(self, devices: Devices) -> RayResourcePool:
        from verl.single_controller.ray.resource_pool import RayResourcePool, SubRayResourcePool

        if self.pool is None:
            trainer = self.config.trainer
            self.pool = RayResourcePool(
                process_on_nodes=[trainer.n_gpus_per_node] * trainer.nnodes,
                use_gpu=self.device == "cuda",
                max_colocate_count=WORKERS_PER_GROUP * (1 if trainer.resource_pool == "dedicated" else len(self.config.agent.agent_ids)),
                cpus_per_process=BUNDLE_CPUS,
            )
        if devices.first + devices.ranks > self.pool.world_size:
            raise ControllerError(f"{devices} are not in the pool of {self.pool.world_size}")
        whole = devices.ranks == self.pool.world_size
        return self.pool if whole else SubRayResourcePool(self.pool, devices.first, devices.ranks)

    def shutdown(self) -> None:
        """End the private cluster, if one was started."""
        import ray

        if self.owns_cluster and ray.is_initialized():
            ray.shutdown()
