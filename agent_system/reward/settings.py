"""What a run says about rewards: the keys under `reward`, and each agent's invalid-action penalty."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace


@dataclass(frozen=True)
class PropagationSettings:
    """Keys under `reward.propagation`.

    Attributes:
        mode: `none`, `uniform`, `discounted` or `threshold`.
        gamma: `discounted`: factor a call, 0 to 1.
        theta: `threshold`: least scaled local reward that lets credit pass, 0 to 1.
        theta_quantile: `threshold`: take theta from this quantile of the scaled local rewards that the batch was given instead.
        local_range: lowest and highest local reward; they are scaled to 0..1.
        min_pass_rate: `threshold`: with a smaller share of links that pass, the step falls back to `uniform`.
    """

    mode: str = "none"
    gamma: float = 0.9
    theta: float = 0.5
    theta_quantile: float | None = None
    local_range: tuple[float, float] = (0.0, 1.0)
    min_pass_rate: float = 0.8


@dataclass(frozen=True)
class OverlongBuffer:
    """Keys under `reward.overlong_buffer`.

    Attributes:
        enable: whether there is a penalty at all.
        len: tokens before the limit over which the penalty grows; 0 takes a fifth of the limit.
        penalty_factor: penalty at the limit.
    """

    enable: bool = False
    len: int = 0
    penalty_factor: float = 1.0


@dataclass(frozen=True)
class RewardSettings:
    """From what the environment says to the reward of a sample.

    Attributes:
        alpha: weight of the team reward.
        team_scope: `episode`, `turn` or `call`; see `agent_system.reward.scope`.
        shaping: a name of `agent_system.reward.shaping.SHAPINGS`.
        shaping_gamma: factor of `discount` and `hop_discount`.
        shaping_threshold: what `binary` compares with.
        propagation: how the team reward travels back along the calls.
        overlong_buffer: soft penalty for long replies.
        invalid_action_penalty: agent id -> penalty of a reply that could not be parsed; agents that are not listed pay nothing.
    """

    alpha: float = 1.0
    team_scope: str = "episode"
    shaping: str = "default"
    shaping_gamma: float = 0.9
    shaping_threshold: float = 0.5
    propagation: PropagationSettings = PropagationSettings()
    overlong_buffer: OverlongBuffer = OverlongBuffer()
    invalid_action_penalty: Mapping[str, float] = field(default_factory=dict)

    def without_penalties(self) -> RewardSettings:
        """The same for validation: penalties steer training and are no score."""
        return replace(self, overlong_buffer=OverlongBuffer(), invalid_action_penalty={})
