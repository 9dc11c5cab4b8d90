"""FSDP2 training engine."""

from verl.workers.engine.fsdp_engine import AdapterPlan, FSDPEngine
from verl.workers.engine.micro_batch import MicroBatchRule
from verl.workers.engine.policy_update import UpdatePlan, update_policy
from verl.workers.engine.sharding import init_mesh
from verl.workers.engine.steps import StepPlan
from verl.workers.engine.value_update import update_values

__all__ = [
    "AdapterPlan",
    "FSDPEngine",
    "MicroBatchRule",
    "StepPlan",
    "UpdatePlan",
    "init_mesh",
    "update_policy",
    "update_values",
]
