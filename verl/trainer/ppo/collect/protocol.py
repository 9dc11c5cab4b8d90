"""What the trainer asks of the agent side: episodes in, one batch of samples out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from verl.protocol import DataProto


class Episode(Protocol):
    """One finished (or failed) run of a task, as far as the trainer looks into it."""

    @property
    def uid(self) -> str:
        """The group it belongs to."""
        ...

    @property
    def task_id(self) -> str:
        """The task played."""
        ...

    @property
    def data_source(self) -> str:
        """The data set it is from."""
        ...

    @property
    def failure(self) -> str | None:
        """Why the episode is in no batch, or None."""
        ...

    @property
    def team_reward(self) -> float:
        """Summed over turns."""
        ...

    @property
    def reply_tokens(self) -> int:
        """Tokens that the run's engines wrote in it, candidates of a tree that were not chosen included."""
        ...

    @property
    def info(self) -> Mapping[str, Any]:
        """What the environment reports: `success` in 0..1, numbers named `<role>/<name>`, and anything else."""
        ...

    def to_json(self) -> dict[str, Any]:
        """Everything a reader may want to see, in JSON types."""
        ...


class CollectResult(Protocol):
    """All episodes of one call to `collect`."""

    @property
    def batch(self) -> DataProto | None:
        """A row a sample, or None when there is none."""
        ...

    @property
    def episodes(self) -> Sequence[Episode]:
        """In the order of tasks and their episodes, failed ones included."""
        ...

    @property
    def metrics(self) -> Mapping[str, float]:
        """`agent/<id>/*`, `env/*` and `rollout/*` of these episodes."""
        ...


class Collector(Protocol):
    """Runs the team on tasks."""

    async def collect(
        self, rows: Sequence[Mapping[str, Any]], n: int, *, step: int, validate: bool = False, greedy: bool = False, attempt: int = 0
    ) -> CollectResult:
        """Play `n` episodes of every dataset row. Raises when too many of them fail.

        Args:
            rows: the tasks.
            n: episodes of each.
            step: training step.
            validate: sample as in validation.
            greedy: always take the likeliest token; group names end in `GREEDY_SUFFIX`.
            attempt: which collection of the step this is; each has seeds and group names of its own.
        """
        ...

    def set_theta(self, theta: float) -> None:
        """Propagate rewards by this `reward.propagation.theta` from now on."""
        ...

    def join(self, results: Sequence[CollectResult]) -> CollectResult:
        """Several collections of one step as one: batch rows and episodes in their order, metrics over all of them."""
        ...
