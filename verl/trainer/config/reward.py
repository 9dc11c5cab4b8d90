"""Keys under `reward`: from what the environment says to the reward of a sample."""

from dataclasses import dataclass
from typing import Optional

from verl.trainer.config.spec import ConfigError, key, section

TEAM_SCOPES = ("episode", "turn", "call")
SHAPINGS = ("default", "turn_weighted", "discount", "hop_weighted", "hop_discount", "binary", "normalized")
PROPAGATIONS = ("none", "uniform", "discounted", "threshold")
THRESHOLD = "reward.propagation.mode=threshold"
FIXED = "reward.propagation.theta_quantile=null"
STEPS = "reward.propagation.theta_step>0"


def _interval(value: list[float]) -> list[float]:
    if len(value) != 2 or not value[0] < value[1]:
        raise ValueError("expected two numbers, the lowest local reward and a higher one")
    return value


@dataclass
class PropagationConfig:
    mode: str = key("none", "how the team reward travels back along the calls of an episode", choices=PROPAGATIONS)
    gamma: float = key(0.9, "factor a call", ge=0, le=1, effect="reward.propagation.mode=discounted")
    theta: float = key(
        0.5,
        "a call that was given a local reward below this (scaled) cuts the credit of those before it",
        ge=0,
        le=1,
        effect=(THRESHOLD, FIXED),
    )
    theta_quantile: Optional[float] = key(
        None, "take theta from this quantile of the batch's scaled local rewards instead", ge=0, le=1, effect=THRESHOLD
    )
    theta_step: float = key(
        0.0,
        "lower theta by so much each time validation accuracy falls; 0 keeps it fixed",
        ge=0,
        le=1,
        effect=(THRESHOLD, FIXED, "data.val_files", "trainer.test_freq>0"),
    )
    theta_fall: float = key(
        0.05, "share by which accuracy (success) must be below the best of the window", ge=0, le=1, effect=(THRESHOLD, STEPS)
    )
    theta_window: int = key(3, "validations before that accuracy is compared with", ge=1, effect=(THRESHOLD, STEPS))
    local_range: list[float] = key(
        [0.0, 1.0], "lowest and highest local reward; they are scaled to [0, 1]", check=_interval, effect="reward.propagation.mode!=none"
    )
    min_pass_rate: float = key(0.8, "a step in which fewer links pass falls back to uniform, with a warning", ge=0, le=1, effect=THRESHOLD)


@dataclass
class OverlongBufferConfig:
    enable: bool = key(False, "soft penalty for replies near the length limit (DAPO)")
    len: int = key(
        0,
        "tokens before the limit in which the penalty grows; 0 takes a fifth of each agent's own limit (DAPO: 4,096 of 20,480)",
        ge=0,
        effect="reward.overlong_buffer.enable=true",
    )
    penalty_factor: float = key(1.0, "penalty at the limit", ge=0, effect="reward.overlong_buffer.enable=true")


@dataclass
class RewardConfig:
    alpha: float = key(1.0, "weight of the team reward: r = alpha * team + local", ge=0)
    team_scope: str = key(
        "episode", "team reward of a sample: episode (the sum) | turn (its own) | call (right after its own action)", choices=TEAM_SCOPES
    )
    shaping: str = key("default", "how the team reward is shaped by the turns and calls of an episode", choices=SHAPINGS)
    shaping_gamma: float = key(0.9, "factor a turn or a call", ge=0, le=1, effect="reward.shaping=discount,hop_discount")
    shaping_threshold: float = key(0.5, "a reward above this counts 1, any other 0", effect="reward.shaping=binary")
    propagation: PropagationConfig = section(PropagationConfig)
    overlong_buffer: OverlongBufferConfig = section(OverlongBufferConfig)


def check_rewards_of_a_tree(reward: RewardConfig) -> None:
    """Raise ConfigError unless a candidate is rewarded for its own action alone, so that the candidates of a call can be compared."""
    scope, mode = reward.team_scope, reward.propagation.mode
    if scope != "call" or mode != "none":
        raise ConfigError(
            f"rollout.sampling=tree pays a candidate what its own action earned, but reward.team_scope={scope} and "
            f"reward.propagation.mode={mode} pay what came later, which one candidate of a call only has led to; "
            "set reward.team_scope=call and reward.propagation.mode=none"
        )
