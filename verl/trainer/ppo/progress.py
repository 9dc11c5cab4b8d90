"""How far a run has come, and where it ends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from verl.trainer.ppo.validation import ValidationResult


@dataclass
class Progress:
    """How far a run has come: what its steps change, and its checkpoints restore.

    Attributes:
        total_steps: training steps of the run.
        token_budget: reply tokens of training episodes after which the run ends; 0 for no such
            limit.
        global_step: the last completed step; 0 before the first one.
        generated_tokens: reply tokens of the training episodes of all completed steps.
        before: the validation before the first step.
        after: the newest validation after a step.
    """

    total_steps: int
    token_budget: int = 0
    global_step: int = 0
    generated_tokens: int = 0
    before: ValidationResult | None = None
    after: ValidationResult | None = None

    @property
    def finished(self) -> bool:
        """Whether the last completed step is the last one of the run."""
        return self.ends_with(self.global_step, self.generated_tokens)

    def ends_with(self, step: int, generated_tokens: int) -> bool:
        """Return whether the run ends with a step.

        Args:
            step: its number, from 1.
            generated_tokens: reply tokens of the run up to that step.
        """
        return step >= self.total_steps or 0 < self.token_budget <= generated_tokens

    def complete(self, step: int, generated_tokens: int) -> None:
        """Count a step as completed; arguments as for `ends_with`."""
        self.global_step = step
        self.generated_tokens = generated_tokens
