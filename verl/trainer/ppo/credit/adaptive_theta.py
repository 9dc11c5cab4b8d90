"""Adaptive threshold of `reward.propagation`, lowered when validation accuracy falls."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from verl.trainer.config.reward import PropagationConfig

ACCURACY = "val/episode/success_rate"
# A fall is a drop by this share below the best of so many validations before it: less is the noise
# of a validation, and a longer window would compare with a policy that theta has moved away from.
FALL = 0.05
WINDOW = 3


class AdaptiveTheta:
    """`theta`, lowered by `theta_step` after each fall of validation accuracy, at least 0.

    Accuracy has fallen if it is below the best of the previous `WINDOW` validations, and at most
    `1 - FALL` times that. The window is cleared after a fall, so that each fall counts
    once. No paper: the rule is this project's.

    Attributes:
        adapts: whether `theta_step` is above 0; otherwise theta is constant.
        value: current theta.
    """

    def __init__(self, config: PropagationConfig) -> None:
        self._config = config
        self._accuracies = list[float]()
        self.adapts = config.theta_step > 0
        self.value = config.theta

    def update(self, metrics: Mapping[str, float]) -> None:
        """Update theta from the metrics of a validation; without a success rate they are ignored."""
        if not self.adapts or ACCURACY not in metrics:
            return
        accuracy = metrics[ACCURACY]
        best = max(self._accuracies, default=0.0)
        # A fall of exactly `FALL` counts, whatever its last bits.
        if accuracy < best and accuracy <= best * (1 - FALL) + 1e-9:
            self.value = max(0.0, self.value - self._config.theta_step)
            self._accuracies.clear()
        self._accuracies = [*self._accuracies, accuracy][-WINDOW:]

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint, in JSON types; empty if theta is fixed."""
        return {"value": self.value, "accuracies": self._accuracies} if self.adapts else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore `state_dict`; an empty state, of a run with fixed theta, is ignored."""
        if self.adapts and state:
            self.value = float(state["value"])
            self._accuracies = list(state["accuracies"])
