"""What a loop with samples that are collected beside its updates needs of their source."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from verl.trainer.ppo.collect.source import SampleSource


@dataclass(eq=False)
class AsynchronousSource(SampleSource):
    """Samples that are collected while policies are updated.

    The training loop calls `update_begins`, `ready`, `metrics` and the methods of `SampleSource`.
    `wants`, `update_ended` and `published` come from the thread that trains the policies, for each
    lane of policies in this order: with several lanes at the same time, and also beside `take` of
    the next step.
    """

    def update_begins(self, step: int, last: bool) -> None:
        """Do what runs beside the updates of a step, which is the last one or not: nothing."""

    def wants(self, step: int, policy: str) -> bool:
        """Return whether the engines get the weights of a policy after its update in a step:
        always.
        """
        return True

    def update_ended(self, step: int, policies: Collection[str]) -> None:
        """Prepare for new weights of policies, in any thread: do nothing."""

    def published(self, version: int, policies: Collection[str]) -> None:
        """Use weights of policies that the engines now have, in any thread: do nothing."""

    def ready(self) -> bool:
        """Return whether the samples of the next step are complete: never before `take`."""
        return False

    def metrics(self, step: int, step_s: float) -> dict[str, float]:
        """Return metrics of a step that has ended after `step_s` seconds."""
        raise NotImplementedError
