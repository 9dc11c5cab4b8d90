"""What scores finished episodes beside the environment, and the form of its result."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from agent_system.errors import AgentSystemError
from agent_system.record import EpisodeRecord


@dataclass(frozen=True)
class Reward:
    """The result of a reward function with named terms; a function without terms may return the
    bare value instead.

    Attributes:
        value: of an episode: the team reward, which replaces the environment's; None keeps it. Of a
            call: its local reward, or with `reward.granularity=token` a list: one number per token
            of the reply, or triples (start, end, reward) of characters.
        terms: named numbers for the metrics `reward/<name>/mean` and `/std`; they are not added to
            the value.
        local: of an episode only: local rewards by number of the call (int, in `episode.samples`,
            from 0) or by agent name (every call of that agent), each as the value of a call. They
            replace the environment's local rewards of these calls.
    """

    value: Any = None
    terms: Mapping[str, float] = field(default_factory=dict)
    local: Mapping[int | str, Any] = field(default_factory=dict)


class RewardManager(ABC):
    """Scores finished episodes; register a subclass by `RewardManagerRegistry.register(name)` and
    set `reward.reward_manager.name`.

    Args:
        function: the function of `reward.custom_reward_function`, or None.
        kwargs: `reward.custom_reward_function.reward_kwargs`.

    Attributes:
        experiment_name: `trainer.experiment_name`; set after construction.

    Raises:
        AgentSystemError: a subclass cannot call the function; found before a model loads.
    """

    experiment_name = ""

    def __init__(self, function: Callable[..., Any] | None, kwargs: Mapping[str, Any]) -> None:
        self.function = function
        self.kwargs = kwargs

    @abstractmethod
    def score(self, episode: EpisodeRecord) -> Any:
        """Return the team reward, a mapping of local rewards (see `Reward.local`) or a `Reward`;
        may be `async def`.

        None is an error; `Reward()` keeps the environment's reward. A plain method runs in a
        thread. An error, or no result within `reward.timeout_s`, costs the episode.
        """

    def read(self, found: Any) -> Reward:
        """Return what `score` returned as a `Reward`. Raise AgentSystemError for None."""
        if isinstance(found, Reward):
            return found
        return (
            Reward(local=found) if isinstance(found, Mapping) else Reward(number(found, "the reward manager"))
        )


def number(reward: Any, where: str) -> Any:
    """Return what a function gave as a reward. Raise AgentSystemError for None, which a function
    without `return` gives too.

    Whether it is a finite number is checked where it is used.
    """
    if reward is None:
        raise AgentSystemError(
            f"{where} gave None as a reward; return a number, or Reward() to keep the environment's"
        )
    return reward
