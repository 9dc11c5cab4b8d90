"""FSDP2 training engine. Names are imported on demand: the driver imports single files, such as
`layout_check.py` and `trie.py`, without the engine.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from verl.workers.engine.fsdp_engine import AdapterPlan, FSDPEngine
    from verl.workers.engine.micro_batch import MicroBatchRule
    from verl.workers.engine.policy_update import PolicyRows, UpdatePlan, update_adapters, update_policy
    from verl.workers.engine.sharding import init_mesh
    from verl.workers.engine.steps import StepPlan
    from verl.workers.engine.value_update import update_values

__all__ = [
    "AdapterPlan",
    "FSDPEngine",
    "MicroBatchRule",
    "PolicyRows",
    "StepPlan",
    "UpdatePlan",
    "init_mesh",
    "update_adapters",
    "update_policy",
    "update_values",
]
_ON_DEMAND = {
    "AdapterPlan": "verl.workers.engine.fsdp_engine",
    "FSDPEngine": "verl.workers.engine.fsdp_engine",
    "MicroBatchRule": "verl.workers.engine.micro_batch",
    "PolicyRows": "verl.workers.engine.policy_update",
    "StepPlan": "verl.workers.engine.steps",
    "UpdatePlan": "verl.workers.engine.policy_update",
    "init_mesh": "verl.workers.engine.sharding",
    "update_adapters": "verl.workers.engine.policy_update",
    "update_policy": "verl.workers.engine.policy_update",
    "update_values": "verl.workers.engine.value_update",
}


def __getattr__(name: str) -> Any:
    if name not in _ON_DEMAND:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_ON_DEMAND[name]), name)
