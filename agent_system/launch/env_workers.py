"""The environment workers of a run: processes of this machine, or Ray actors with the Ray
controller.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from agent_system.env_workers import EnvSource
from agent_system.registry import EnvRegistry
from agent_system.rollout.settings import ENV_THREADS
from verl.trainer.config import CollectConfig, RayInitConfig, RunConfig, TrainerConfig
from verl.trainer.config.run import EnvWorkersConfig
from verl.trainer.config.spec import ConfigError
from verl.trainer.plan.devices import count_devices
from verl.trainer.plan.placement import Placement
from verl.trainer.ppo.controller import BUNDLE_CPUS, free_cpus, import_path

if TYPE_CHECKING:
    from agent_system.env_workers import EnvWorkers
    from agent_system.env_workers.messages import Transport


def check_cpus(
    keys: EnvWorkersConfig,
    trainer: TrainerConfig,
    rollout: CollectConfig,
    ray_init: RayInitConfig,
    placement: Placement,
) -> None:
    """Raise ConfigError if the workers of `env.workers` reserve more CPUs than Ray has free.

    Without a running Ray, the size of the private cluster to start counts; a cluster to join is
    only known once it is joined.
    """
    free = free_cpus(trainer, ray_init) if keys.num else None
    if free is None:
        return
    free -= BUNDLE_CPUS * count_devices(trainer, rollout) if placement.groups else 0.0
    if keys.num * keys.cpus > free:
        raise ConfigError(
            f"env.workers.num={keys.num} and env.workers.cpus={keys.cpus:g} reserve "
            f"{keys.num * keys.cpus:g} CPUs, but the Ray cluster has {free:g} free; lower one of "
            "them, or raise ray_init.num_cpus of a private cluster"
        )


@contextmanager
def env_workers(config: RunConfig) -> Iterator[EnvWorkers | None]:
    """Start the workers of `env.workers` and end them at exit; None with `env.workers.num=0`.

    Raises EnvWorkerError when a worker cannot start.
    """
    if config.env.workers.num == 0:
        yield None
        return
    # the workers, which most runs do not have
    from agent_system.env_workers import EnvWorkers

    keys = config.env.workers
    source = EnvSource(
        name=config.env.env_name,
        params=config.env.params,
        plugins=tuple(config.agent.plugins),
        sandbox=config.sandbox,
        threads=ENV_THREADS,
        memory_bytes=None if keys.memory_gib is None else int(keys.memory_gib * 2**30),
        workers=keys.num,
    )
    start = _starter(source, keys.cpus, on_ray=config.trainer.controller != "local")
    workers = EnvWorkers(EnvRegistry.get(config.env.env_name), keys.num, start)
    try:
        yield workers
    finally:
        workers.close()


def _starter(source: EnvSource, cpus: float, *, on_ray: bool) -> Callable[[], Transport]:
    """Return the function that starts a worker, a Ray actor with so many CPUs or a process."""
    payload = pickle.dumps(source)
    environment = {"PYTHONPATH": import_path()}
    if not on_ray:
        from agent_system.env_workers import ProcessWorker

        return lambda: ProcessWorker(payload, environment)
    from agent_system.env_workers.ray_actor import RayWorker

    return lambda: RayWorker(payload, cpus, environment)
