"""The local backend: one worker in this process, no Ray; for debugging and for machines without it."""

from verl.single_controller.local.worker_group import LocalResourcePool, LocalWorkerGroup

__all__ = ["LocalResourcePool", "LocalWorkerGroup"]
