"""Training: batches, models, losses, workers. Independent of `agent_system`."""

from typing import Any

__all__ = ["DataProto"]


def __getattr__(name: str) -> Any:
    if name == "DataProto":  # imported on demand, so that the configuration can be read without torch
        from verl.protocol import DataProto

        return DataProto
    raise AttributeError(f"module 'verl' has no attribute {name!r}")
