"""verl's import path."""

from verl.compat.controller import ArgumentLostError, ClassWithInitArgs, ResourcePool, WorkerDiedError, WorkerGroup  # noqa: F401
