"""Training: batches, models, losses, workers. Independent of `agent_system`."""

import gc
from typing import Any

# Modules live long, as do the episodes of a collection. With Python's threshold of 700 new objects,
# the search for cycles among them takes a fifth of the time in which torch and transformers are
# imported, and a quarter of that of a collection.
if 0 < gc.get_threshold()[0] < 50_000:
    gc.set_threshold(50_000, 20, 20)

__all__ = ["DataProto"]


def __getattr__(name: str) -> Any:
    # imported on demand, so that the configuration can be read without torch
    if name == "DataProto":
        from verl.protocol import DataProto

        return DataProto
    raise AttributeError(f"module 'verl' has no attribute {name!r}")
