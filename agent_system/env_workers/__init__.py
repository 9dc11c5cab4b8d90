"""Environments in worker processes: sticky for each episode, forked there, many episodes in each
worker.

`RemoteEnv` in the driver sends the calls of one environment to `EnvHost` in a worker, which answers
them with the same `EnvCaller` that plays in the driver without workers. A worker is a process of
this machine (`ProcessWorker`) or a Ray actor (`RayWorker`). This package imports no torch: a worker
is as small as its environment. Names are imported on demand: with `env.workers.num=0` a run has no
workers.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from agent_system.env_workers.messages import EnvSource, EnvWorkerError

if TYPE_CHECKING:
    from agent_system.env_workers.pool import EnvWorkers
    from agent_system.env_workers.process import ProcessWorker

__all__ = ["EnvSource", "EnvWorkerError", "EnvWorkers", "ProcessWorker"]
_ON_DEMAND = {
    "EnvWorkers": "agent_system.env_workers.pool",
    "ProcessWorker": "agent_system.env_workers.process",
}


def __getattr__(name: str) -> Any:
    if name not in _ON_DEMAND:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_ON_DEMAND[name]), name)
