"""Controllers start workers: as Ray actors on one node or many, or as objects in this process."""

from __future__ import annotations

import logging
import os
import sys
from typing import TYPE_CHECKING, Any, Protocol

from verl.trainer.config import CollectConfig, RayInitConfig, RunConfig, TrainerConfig
from verl.trainer.plan.devices import (
    ENGINES,
    TRAINER,
    Devices,
    engine_pool,
    own_engine_devices,
    trainer_pool,
)

if TYPE_CHECKING:
    from verl.single_controller.ray.resource_pool import RayResourcePool
    from verl.single_controller.worker_group import WorkerGroup

logger = logging.getLogger(__name__)

RAY_SYSTEM_CONFIG = {
    "health_check_failure_threshold": 60,
    # Our actors set their own environment variables, so a prestarted worker would never be used.
    "prestart_worker_first_driver": False,
    # Ray keeps 100,000 finished tasks for a dashboard that a private cluster does not have: 50 KB
    # per step in its head process.
    "task_events_report_interval_ms": 0,
    # Workers have the run's own priority. By default they have the lowest but a few, and any other
    # program on the machine interrupts threads that wait for each other after every operation.
    "worker_niceness": 0,
}
RAY_TOKEN_LOGGER = "ray._private.authentication.authentication_token_setup"
# Groups share the cores and set their number of threads, so bundles only select the node.
BUNDLE_CPUS = 0.01
# Workers of a worker group on one device: its policy and its critic, and its engine.
WORKERS_PER_GROUP = {TRAINER: 2, ENGINES: 1}


class ControllerError(ValueError):
    """A backend cannot run the configuration."""


def _not_about_enabled_tokens(record: logging.LogRecord) -> bool:
    """Return False for Ray's warning that token authentication, its default, is enabled; a warning
    that it is off is kept.
    """
    return not record.getMessage().startswith("Token authentication is enabled")


class Controller(Protocol):
    """Starts worker groups and stops them."""

    parallel: bool
    device: str

    def threads_per_worker(self, processes: int) -> int:
        """Return the CPU threads of one worker if this many are busy at the same time on a node."""
        ...

    def spawn(
        self, name: str, cls: type, devices: Devices, kwargs: dict[str, Any], max_concurrency: int = 1
    ) -> WorkerGroup:
        """Start a worker `cls(**kwargs)` on each device; each runs up to `max_concurrency` calls
        concurrently.
        """
        ...

    def shutdown(self) -> None:
        """Stop everything that this controller started, and nothing else."""
        ...


def resolve_device(device: str) -> str:
    """Return the device: `auto` is cuda if torch sees a GPU, else cpu. Raises ControllerError for
    cuda without a GPU.
    """
    import torch

    if device not in ("auto", "cpu", "cuda"):
        raise ControllerError(f"trainer.device={device!r}: expected auto, cpu or cuda")
    if device == "cuda" and not torch.cuda.is_available():
        raise ControllerError(
            "trainer.device=cuda, but torch sees no GPU; use trainer.device=cpu or install a CUDA "
            "build of torch"
        )
    return ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device


def import_path() -> str:
    """Return the folders of `sys.path` outside the interpreter's installation, so that workers of
    any cluster find plug-ins.
    """
    prefixes = (sys.prefix, sys.base_prefix)
    return os.pathsep.join(
        dict.fromkeys(os.path.abspath(folder) for folder in sys.path if not folder.startswith(prefixes))
    )


def free_cpus(trainer: TrainerConfig, ray_init: RayInitConfig) -> float | None:
    """Return the CPUs that Ray has free, or will have in the private cluster to start; None without
    Ray, and for a cluster to join.
    """
    if trainer.controller != "ray":
        return None
    import ray

    if ray.is_initialized():
        return float(ray.available_resources().get("CPU", 0.0))
    return None if cluster_address(ray_init) else float(_private_cpus(ray_init))


def cluster_address(ray_init: RayInitConfig) -> str | None:
    """Return the address of the cluster to join; None for a private one."""
    return ray_init.address or os.environ.get("RAY_ADDRESS") or None


def _private_cpus(ray_init: RayInitConfig) -> int:
    """Return the CPUs of a private cluster."""
    return ray_init.num_cpus or os.cpu_count() or 1


def build_controller(config: RunConfig) -> Controller:
    """Return the backend of `trainer.controller`."""
    device = resolve_device(config.trainer.device)
    if config.trainer.controller == "local":
        return LocalController(config.trainer, config.rollout, device)
    if config.trainer.controller == "ray":
        return RayController(config, device)
    raise ControllerError(f"trainer.controller={config.trainer.controller!r}: expected ray or local")


def check_local(trainer: TrainerConfig, rollout: CollectConfig) -> None:
    """Raise ControllerError for more devices than the one of `trainer.controller=local`."""
    if trainer.nnodes * trainer.n_gpus_per_node != 1:
        raise ControllerError(
            f"trainer.controller=local runs one rank, but trainer.nnodes={trainer.nnodes} and "
            f"trainer.n_gpus_per_node={trainer.n_gpus_per_node}; set both to 1 or use "
            "trainer.controller=ray"
        )
    if trainer.resource_pool == "dedicated":
        raise ControllerError(
            "trainer.resource_pool=dedicated needs trainer.controller=ray: local groups run "
            "one after the other"
        )
    if own_engine_devices(rollout):
        raise ControllerError(
            f"rollout.n_gpus_per_node={rollout.n_gpus_per_node} needs trainer.controller=ray: "
            "a local engine shares the one device of its policy"
        )


class LocalController:
    """All workers in this process, one rank per group; for debugging and for machines without Ray."""

    parallel = False

    def __init__(self, trainer: TrainerConfig, rollout: CollectConfig, device: str) -> None:
        check_local(trainer, rollout)
        self.device = device
        self.timeout_s = trainer.worker_timeout_s

    def threads_per_worker(self, processes: int) -> int:
        """Return the number of cores: groups run one after the other."""
        return os.cpu_count() or 1

    def spawn(
        self, name: str, cls: type, devices: Devices, kwargs: dict[str, Any], max_concurrency: int = 1
    ) -> WorkerGroup:
        """Create the worker in this process."""
        from verl.single_controller.local import LocalResourcePool, LocalWorkerGroup
        from verl.single_controller.worker_group import ClassWithInitArgs

        return LocalWorkerGroup(
            LocalResourcePool([devices.ranks]), ClassWithInitArgs(cls, **kwargs), timeout_s=self.timeout_s
        )

    def shutdown(self) -> None:
        """Do nothing: no process was started."""


class RayController:
    """All workers are Ray actors; joins the cluster at `ray_init.address` (or RAY_ADDRESS), else
    starts a private one.
    """

    parallel = True

    def __init__(self, config: RunConfig, device: str) -> None:
        self.config = config
        self.device = device
        self.pools: dict[str, RayResourcePool] = {}
        self._start_ray()

    def _start_ray(self) -> None:
        import ray

        from verl.single_controller.ray.start import start_private_cluster

        logging.getLogger(RAY_TOKEN_LOGGER).addFilter(_not_about_enabled_tokens)
        # Until it is started: a failed start leaves nothing to stop.
        self.owns_cluster = False
        options = self.config.ray_init
        if ray.is_initialized():
            if options.env_vars:
                logger.warning("ray_init.env_vars has no effect: this process called ray.init before the run")
            return
        address = cluster_address(options)
        # Workers of a private cluster inherit the environment of this process; those of another one
        # do not.
        variables: dict[str, Any] = {}
        if options.env_vars:
            values = {name: str(value) for name, value in options.env_vars.items()}
            variables["runtime_env"] = {"env_vars": values}
        if address:
            try:
                ray.init(address=address, log_to_driver=True, logging_level=logging.WARNING, **variables)
            except (ConnectionError, ValueError) as error:
                raise ControllerError(
                    f"ray_init.address={address!r} (or RAY_ADDRESS): {error}; start the cluster, "
                    "leave the address out for a private one, or set RAY_AUTH_MODE=token if the "
                    "cluster requires a token"
                ) from error
        else:
            start_private_cluster(
                num_cpus=_private_cpus(options),
                object_store_memory=options.object_store_memory_mb and options.object_store_memory_mb * 2**20,
                log_to_driver=True,
                logging_level=logging.WARNING,
                _system_config=dict(RAY_SYSTEM_CONFIG),
                **variables,
            )
        self.owns_cluster = not address

    def threads_per_worker(self, processes: int) -> int:
        """Return the cores of a node divided by the workers that run concurrently."""
        return max((os.cpu_count() or 1) // processes, 1)

    def spawn(
        self, name: str, cls: type, devices: Devices, kwargs: dict[str, Any], max_concurrency: int = 1
    ) -> WorkerGroup:
        """Start the actors on their part of the pool, colocated with other groups there."""
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
            peers=[self._whole_pool(ENGINES)]
            if own_engine_devices(self.config.rollout) and devices.pool == TRAINER
            else [],
        )

    def _pool(self, devices: Devices) -> RayResourcePool:
        from verl.single_controller.ray.resource_pool import SubRayResourcePool

        pool = self._whole_pool(devices.pool)
        if devices.first + devices.ranks > pool.world_size:
            raise ControllerError(f"{devices} are not in the pool of {pool.world_size}")
        return (
            pool
            if devices.ranks == pool.world_size
            else SubRayResourcePool(pool, devices.first, devices.ranks)
        )

    def _whole_pool(self, section: str) -> RayResourcePool:
        """Return the pool of a section, made on the first call; it keeps its placement groups until
        `shutdown`.
        """
        from verl.single_controller.ray.resource_pool import RayResourcePool

        if section not in self.pools:
            config = self.config
            trainer = config.trainer
            pool = trainer_pool(trainer) if section == TRAINER else engine_pool(trainer, config.rollout)
            # Every agent may have a worker group of its own.
            groups = len(config.agent.agent_ids) + (config.reward.model.path is not None)
            workers = (
                WORKERS_PER_GROUP[section]
                if own_engine_devices(config.rollout)
                else sum(WORKERS_PER_GROUP.values())
            )
            self.pools[section] = RayResourcePool(
                process_on_nodes=[pool.per_node] * pool.nodes,
                use_gpu=self.device == "cuda",
                max_colocate_count=workers * (1 if trainer.resource_pool == "dedicated" else groups),
                cpus_per_process=BUNDLE_CPUS,
            )
            self.pools[section].acquire(self)
        return self.pools[section]

    def shutdown(self) -> None:
        """Stop the private cluster, or give the devices back to a cluster that goes on."""
        import ray

        if self.owns_cluster and ray.is_initialized():
            ray.shutdown()
        elif not self.owns_cluster:
            for pool in self.pools.values():
                pool.release(self)
