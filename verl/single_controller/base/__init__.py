"""verl's import path."""

from verl.compat.controller import ClassWithInitArgs, ResourcePool, Worker, WorkerDiedError, WorkerGroup  # noqa: F401
