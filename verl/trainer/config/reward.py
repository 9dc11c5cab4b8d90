"""Keys under `reward`: from what the environment says to the reward of a sample."""

from dataclasses import dataclass
from typing import Optional

from verl.trainer.config.spec import key, section

# Names that the agent side knows; it cannot be imported here.
TEAM_SCOPES = ("episode", "turn", "call")
SHAPINGS = ("default", "turn_weighted", "discount", "hop_weighted", "hop_discount", "binary", "normalized")
PROPAGATIONS = ("none", "uniform", "discounted", "threshold")


@dataclass
class PropagationConfig:
    mode: str = key("none", "none | uniform | discounted | threshold: how the team reward travels back along the calls of an episode")
    gamma: float = key(0.9, "discounted: factor a call")
    theta: float = key(0.5, "threshold: a call that was given a local reward below this (scaled) cuts the credit of those before it")
    theta_quantile: Optional[float] = key(None, "threshold: take theta from this quantile of the batch's scaled local rewards instead")
    theta_step: float = key(0.0, "threshold: lower theta by so much each time validation accuracy falls; 0 keeps it fixed")
    theta_fall: float = key(0.05, "theta_step: share by which accuracy (success) must be below the best of the window")
    theta_window: int = key(3, "theta_step: validations before that accuracy is compared with")
    local_range: list[float] = key([0.0, 1.0], "lowest and highest local reward; they are scaled to [0, 1]")
    min_pass_rate: float = key(0.8, "threshold: a step in which fewer links pass falls back to uniform, with a warning")


@dataclass
class OverlongBufferConfig:
    enable: bool = key(False, "soft penalty for replies near the length limit (DAPO)")
    len: int = key(
        0, "tokens before the limit in which the penalty grows; 0 takes a fifth of each agent's own limit (DAPO: 4,096 of 20,480)"
    )
    penalty_factor: float = key(1.0, "penalty at the limit")


@dataclass
class RewardConfig:
    alpha: float = key(1.0, "weight of the team reward: r = alpha * team + local")
    team_scope: str = key("episode", "team reward of a sample: episode (the sum) | turn (its own) | call (right after its own action)")
    shaping: str = key("default", "default | turn_weighted | discount | hop_weighted | hop_discount | binary | normalized")
    shaping_gamma: float = key(0.9, "shaping=discount, hop_discount: factor a turn or a call")
    shaping_threshold: float = key(0.5, "shaping=binary: a reward above this counts 1, any other 0")
    propagation: PropagationConfig = section(PropagationConfig)
    overlong_buffer: OverlongBufferConfig = section(OverlongBufferConfig)
