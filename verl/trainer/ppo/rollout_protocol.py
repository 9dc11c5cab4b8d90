"""What the trainer asks of the agent side: episodes in, one batch of samples out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from verl.protocol import DataProto


class Episode(Protocol):
    """One finished (or failed) run of a task, as far as the trainer looks into it."""

    task_id: str
    data_source: str

    @property
    def failed(self) -> bool:
        """The episode ended in an error and is in no batch."""
        ...

    @property
    def scores(self) -> Mapping[str, float]:
        """Numbers to average in validation: `team_reward`, `success` in 0..1, and what the environment reports (`<role>/<name>`)."""
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

    async def collect(self, rows: Sequence[Mapping[str, Any]], n: int, *, step: int, validate: bool = False) -> CollectResult:
        """Play `n` episodes of every dataset row. Raises when too many of them fail."""
        ...
