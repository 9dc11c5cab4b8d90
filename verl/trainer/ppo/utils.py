"""verl's import path."""

from verl.compat.trainer import Role, WorkerType, need_critic, need_reference_policy  # noqa: F401
