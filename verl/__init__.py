"""Training: batches, models, losses, workers. Knows nothing of agents."""

from typing import Any

__all__ = ["DataProto"]


def __getattr__(name: str) -> Any:
    if name == "DataProto":  # on demand, so that the configuration can be read without importing torch
        from verl.protocol import DataProto

        return DataProto
    raise AttributeError(f"module 'verl' has no attribute {name!r}")
