"""verl's import path."""

from verl.compat.controller import Worker, WorkerHelper, find_free_port  # noqa: F401
