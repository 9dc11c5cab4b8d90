"""Every key of a run: its type, default and meaning. Imports no torch."""

from verl.trainer.config.model import (
    ActorConfig,
    ActorRolloutRefConfig,
    FSDPConfig,
    ModelConfig,
    OptimConfig,
    RefConfig,
    RolloutConfig,
    ValSamplingConfig,
)
from verl.trainer.config.run import (
    AgentConfig,
    AlgorithmConfig,
    CollectConfig,
    DataConfig,
    EnvConfig,
    KLCtrlConfig,
    RayInitConfig,
    RewardConfig,
    RunConfig,
    TrainerConfig,
)

__all__ = [
    "ActorConfig", "ActorRolloutRefConfig", "AgentConfig", "AlgorithmConfig", "CollectConfig", "DataConfig", "EnvConfig",
    "FSDPConfig", "KLCtrlConfig", "ModelConfig", "OptimConfig", "RayInitConfig", "RefConfig", "RewardConfig",
    "RolloutConfig", "RunConfig", "TrainerConfig", "ValSamplingConfig",
]  # fmt: skip
