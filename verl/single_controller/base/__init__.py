"""What every controller backend shares: workers, worker groups, resource pools and dispatch modes."""

from verl.single_controller.base.worker import Worker
from verl.single_controller.base.worker_group import ClassWithInitArgs, ResourcePool, WorkerDiedError, WorkerGroup

__all__ = ["ClassWithInitArgs", "ResourcePool", "Worker", "WorkerDiedError", "WorkerGroup"]
