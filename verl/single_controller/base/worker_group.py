"""verl's import path."""

from verl.compat.controller import (  # noqa: F401
    ArgumentLostError,
    ClassWithInitArgs,
    ResourcePool,
    WorkerDiedError,
    WorkerGroup,
)
