"""The pace of each policy in `async_training.mode=fully_async`."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, replace

from verl.trainer.config.run import AsyncTrainingConfig
from verl.trainer.config.spec import with_values

PER_POLICY_KEYS = ("max_off_policy_threshold", "staleness_threshold", "trigger_parameter_sync_step")


@dataclass(frozen=True)
class Pace:
    """How far the samples of a policy may be behind it.

    Attributes:
        staleness: `async_training.staleness_threshold`.
        trigger: `async_training.trigger_parameter_sync_step`.
        bound: `async_training.max_off_policy_threshold`.
    """

    staleness: float = 0.0
    trigger: int = 1
    bound: int = 0

    @property
    def least_bound(self) -> int:
        """The lowest bound with which no group misses its deadline, see `group_queue`."""
        return math.ceil((1 + self.staleness) * self.trigger) - 1

    def sends(self, way: str, step: int, version: int, ahead: bool) -> bool:
        """Return whether the engines get the weights of a step.

        Args:
            way: `async_training.parameter_sync`.
            step: the step whose update has ended.
            version: step of the weights that the engines have.
            ahead: the next batch is complete, so no step waits for the engines while they load weights.
        """
        if way == "adaptive":
            return ahead or step - version >= self.trigger
        return way == "eager" or step % self.trigger == 0


def paces(settings: AsyncTrainingConfig, policies: Collection[str]) -> dict[str, Pace]:
    """Return the pace of each policy: that of the run, overridden by its own keys. Raises ConfigError for an invalid key or value."""
    found: dict[str, Pace] = {}
    for policy in policies:
        own, where = settings.per_policy.get(policy) or {}, f"async_training.per_policy.{policy}"
        values = with_values(replace(settings, per_policy={}), own, where, PER_POLICY_KEYS)
        found[policy] = Pace(values.staleness_threshold, values.trigger_parameter_sync_step, values.max_off_policy_threshold)
    return found
