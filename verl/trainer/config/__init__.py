"""Every key of a run: its type, default and meaning. Imports no torch, and of this package only
`verl.utils`: what follows from several keys is in `verl.trainer.plan`.
"""

from verl.trainer.config.algorithm import AlgorithmConfig, KLCtrlConfig, RolloutCorrectionConfig
from verl.trainer.config.api import ApiConfig
from verl.trainer.config.critic import CriticConfig
from verl.trainer.config.gateway import GatewayConfig
from verl.trainer.config.model import (
    ActorConfig,
    ActorRolloutRefConfig,
    FSDPConfig,
    ModelConfig,
    OptimConfig,
    RefConfig,
    RolloutConfig,
    TrainedModelConfig,
    ValSamplingConfig,
)
from verl.trainer.config.profiler import GlobalProfilerConfig, ProfilerConfig
from verl.trainer.config.reward import RewardConfig
from verl.trainer.config.run import (
    AgentConfig,
    AsyncTrainingConfig,
    CollectConfig,
    DataConfig,
    EnvConfig,
    RayInitConfig,
    RunConfig,
    TrainerConfig,
)
from verl.trainer.config.sandbox import SandboxConfig, SandboxLimitsConfig

__all__ = [
    "ActorConfig", "ActorRolloutRefConfig", "AgentConfig", "AlgorithmConfig", "ApiConfig",
    "AsyncTrainingConfig", "CollectConfig", "CriticConfig", "DataConfig", "EnvConfig", "FSDPConfig",
    "GatewayConfig", "GlobalProfilerConfig", "KLCtrlConfig", "ModelConfig", "OptimConfig",
    "ProfilerConfig", "RayInitConfig", "RefConfig", "RewardConfig", "RolloutConfig",
    "RolloutCorrectionConfig", "RunConfig", "SandboxConfig", "SandboxLimitsConfig", "TrainedModelConfig",
    "TrainerConfig", "ValSamplingConfig",
]  # fmt: skip
