"""A threshold of `reward.propagation` that is lowered when validation gets worse."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from verl.trainer.config.reward import PropagationConfig

ACCURACY = "val/episode/success_rate"


class AdaptiveTheta:
    """`theta`, less `theta_step` after each fall of validation accuracy, never below 0.

    Accuracy has fallen when it is below the best of the last `theta_window` validations before, and at most `1 - theta_fall` times that.
    After a fall these are forgotten, so that each is answered once. No paper: the rule is this project's.

    Attributes:
        adapts: `theta_step` is above 0; otherwise nothing here changes.
        value: theta as it is.
    """

    def __init__(self, config: PropagationConfig) -> None:
        self._config, self._accuracies = config, list[float]()
        self.adapts, self.value = config.theta_step > 0, config.theta

    def look(self, metrics: Mapping[str, float]) -> None:
        """Take in the metrics of a validation; one without a success rate says nothing."""
        if not self.adapts or ACCURACY not in metrics:
            return
        accuracy = metrics[ACCURACY]
        best = max(self._accuracies, default=0.0)
        if accuracy < best and accuracy <= best * (1 - self._config.theta_fall):
            self.value = max(0.0, self.value - self._config.theta_step)
            self._accuracies.clear()
        self._accuracies = [*self._accuracies, accuracy][-self._config.theta_window :]

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint has to keep, in JSON types; nothing while theta is fixed."""
        return {"value": self.value, "accuracies": self._accuracies} if self.adapts else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from `state_dict`; of a run whose theta was fixed there is nothing to go on from."""
        if self.adapts and state:
            self.value, self._accuracies = float(state["value"]), list(state["accuracies"])
