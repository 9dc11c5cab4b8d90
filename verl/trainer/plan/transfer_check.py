"""Check of the way in which weights get to engines, by where policies and engines are; part of
`checks`.
"""

from __future__ import annotations

from verl.trainer.config import CollectConfig, TrainerConfig
from verl.trainer.config.spec import ConfigError
from verl.trainer.plan.devices import own_engine_devices
from verl.utils.names import did_you_mean
from verl.workers.weight_transfer import (
    EXPANDABLE_SEGMENTS,
    expandable_segments,
    transfer_exists,
    transfer_names,
)


def check_transfer(trainer: TrainerConfig, rollout: CollectConfig, name: str, setting: str) -> None:
    """Check `rollout.weight_transfer` of an agent.

    Args:
        trainer: keys under `trainer`.
        rollout: keys under `rollout`.
        name: the value.
        setting: the agent's `key=value` in messages.

    Raises ConfigError for a transfer that does not exist, or that cannot send between the GPUs of
    policy and engine.
    """
    if not transfer_exists(name):
        names = transfer_names()
        raise ConfigError(
            f"{setting}: expected {', '.join(names)} or module.Class of a WeightTransfer that can be "
            f"imported{did_you_mean(name, names)}"
        )
    if name != "cuda_ipc" or trainer.device == "cpu":
        return
    if own_engine_devices(rollout):
        raise ConfigError(
            f"{setting} sends weights within one GPU, but "
            f"rollout.n_gpus_per_node={rollout.n_gpus_per_node} gives engines GPUs of their own; "
            "use auto, collective or object_store"
        )
    if expandable_segments():
        raise ConfigError(
            f"{setting}: CUDA IPC cannot share memory of expandable segments; unset "
            f"{EXPANDABLE_SEGMENTS}, or use object_store"
        )
