"""Options of the farama workflow: the team's and the world's."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from agent_system.errors import AgentSystemError, suggestion

APIS = ("gymnasium", "aec", "parallel")
REWARDS = ("auto", "each", "sum", "mean")


@dataclass(frozen=True)
class FaramaOptions:
    """Options under `agent.orchestra.farama`.

    Attributes:
        advisers: agents that speak before whoever has to act, in this order.
    """

    advisers: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        _distinct_texts("agent.orchestra.farama.advisers", self.advisers)


@dataclass(frozen=True)
class FaramaEnvOptions:
    """Options under `env.params`.

    Attributes:
        env_id: what to play: an id for `gymnasium.make` or `pettingzoo.make`, or, for PettingZoo, `module:function` of one that is not
            registered.
        api: gymnasium | aec (PettingZoo, one player at a time) | parallel (PettingZoo, all at the same time).
        kwargs: arguments of its constructor.
        actions: names of the actions of a Discrete space, in order; empty takes their numbers.
        random_seats: players that no agent plays; they make legal moves at random.
        rewards: who gets them: each (every player its own, as its local reward) | sum, mean (over the team's players, as the team reward)
            | auto (sum when the team has one player, else each).
        reward_scale: factor of what the world pays.
        illegal_penalty: local, for a reply that holds no legal action.
        success_return: least sum of the team's rewards, not scaled, that is a success; None reports none.
    """

    env_id: str = ""
    api: str = "gymnasium"
    kwargs: dict[str, Any] = field(default_factory=dict)
    actions: list[str] = field(default_factory=list)
    random_seats: list[str] = field(default_factory=list)
    rewards: str = "auto"
    reward_scale: float = 1.0
    illegal_penalty: float = 0.1
    success_return: float | None = None

    def __post_init__(self) -> None:
        if not self.env_id:
            raise AgentSystemError(
                "env.params.env_id is missing; name what to play, such as FrozenLake-v1, or classic/tictactoe-v3 with env.params.api=aec"
            )
        _one_of("env.params.api", self.api, APIS)
        _one_of("env.params.rewards", self.rewards, REWARDS)
        if not isinstance(self.kwargs, Mapping):
            raise AgentSystemError(f"env.params.kwargs must be arguments by name, found {self.kwargs!r}")
        for name in ("actions", "random_seats"):
            _distinct_texts(f"env.params.{name}", getattr(self, name))
        if self.random_seats and self.api == "gymnasium":
            raise AgentSystemError("env.params.random_seats has no effect with env.params.api=gymnasium, where there is one player")
        if not math.isfinite(self.reward_scale):
            raise AgentSystemError(f"env.params.reward_scale must be a finite number, found {self.reward_scale}")
        if not 0 <= self.illegal_penalty < math.inf:
            raise AgentSystemError(f"env.params.illegal_penalty must be a finite number, 0 or more, found {self.illegal_penalty}")
        wanted = self.success_return
        if wanted is not None and (isinstance(wanted, bool) or not isinstance(wanted, int | float) or not math.isfinite(wanted)):
            raise AgentSystemError(f"env.params.success_return must be a finite number, found {wanted!r}")


def _one_of(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise AgentSystemError(f"{name} must be one of {', '.join(known)}, found {value!r}{suggestion(value, known)}")


def _distinct_texts(name: str, values: Any) -> None:
    if not isinstance(values, list | tuple) or not all(isinstance(v, str) and v.strip() for v in values):
        raise AgentSystemError(f"{name} must be a list of names, found {values!r}; quote numbers: ['0', '1']")
    if len({v.strip().casefold() for v in values}) < len(values):
        raise AgentSystemError(f"{name} names something twice: {', '.join(values)}")
