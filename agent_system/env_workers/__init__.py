"""Environments in worker processes: sticky for each episode, forked there, many episodes in each worker.

`RemoteEnv` in the driver sends the calls of one environment to `EnvHost` in a worker, which answers them with
the same `EnvCaller` that plays in the driver without workers. A worker is a process of this machine
(`ProcessWorker`) or a Ray actor (`RayWorker`). This package imports no torch: a worker is as small as its
environment.
"""

from agent_system.env_workers.messages import EnvSource, EnvWorkerError
from agent_system.env_workers.pool import EnvWorkers
from agent_system.env_workers.process import ProcessWorker

__all__ = ["EnvSource", "EnvWorkerError", "EnvWorkers", "ProcessWorker"]
