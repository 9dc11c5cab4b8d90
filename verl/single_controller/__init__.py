"""One driver, many workers: the trainer calls a method of a worker group and every worker runs its share."""

from verl.single_controller.base import ClassWithInitArgs, ResourcePool, Worker, WorkerDiedError, WorkerGroup

__all__ = ["ClassWithInitArgs", "ResourcePool", "Worker", "WorkerDiedError", "WorkerGroup"]
