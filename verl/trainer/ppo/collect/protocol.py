"""Protocol of collectors, the interface between trainer and agents: tasks in, episodes and one
batch of samples out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, Protocol

from verl.protocol import DataProto


class FinishedEpisode(Protocol):
    """One finished (or failed) episode of a task: the attributes that the trainer reads."""

    @property
    def uid(self) -> str:
        """Group of the episode."""
        ...

    @property
    def task_id(self) -> str:
        """Task of the episode."""
        ...

    @property
    def data_source(self) -> str:
        """Data source of the task."""
        ...

    @property
    def failure(self) -> str | None:
        """Reason why the episode is in no batch, or None."""
        ...

    @property
    def team_reward(self) -> float:
        """Team reward, summed over turns."""
        ...

    @property
    def reply_tokens(self) -> int:
        """Number of tokens that the run's engines generated for it, including candidates of a tree
        that were not committed.
        """
        ...

    @property
    def info(self) -> Mapping[str, Any]:
        """Report of the environment: `success` in 0..1, numbers named `<role>/<name>`, and other
        values.
        """
        ...

    def to_json(self) -> dict[str, Any]:
        """Return the whole episode in JSON types."""
        ...


class EpisodeBatch(Protocol):
    """All episodes of one call to `collect`."""

    @property
    def batch(self) -> DataProto | None:
        """One row per sample, or None if there is none."""
        ...

    @property
    def episodes(self) -> Sequence[FinishedEpisode]:
        """Episodes in the order of tasks, including failed ones."""
        ...

    @property
    def metrics(self) -> Mapping[str, float]:
        """Metrics `agent/<id>/*`, `env/*` and `rollout/*` of these episodes."""
        ...


class EpisodeGroupPlayer(Protocol):
    """Plays groups one by one; a group is all episodes of one task."""

    @property
    def limit_s(self) -> float:
        """Seconds in which every episode ends after it has begun, without the time that engines
        take for its replies.
        """
        ...

    @property
    def in_time(self) -> bool:
        """Whether an episode in progress has not used up its time limit, which does not count the
        time of engines.
        """
        ...

    async def play(
        self, task: Any, n: int, *, step: int, attempt: int = 0, number: int = 0, greedy: bool = False
    ) -> Sequence[Any]:
        """Return the `n` episodes of a task that `EpisodeCollector.collect` plays for the
        `number`-th appearance of the task.
        """
        ...

    def uid(self, task: Any, *, step: int, attempt: int, number: int) -> str:
        """Return the id of a group that `play` plays."""
        ...

    def set_open(self, to_more: bool) -> None:
        """Begin episodes (`to_more`), or let them wait; those in progress go on."""
        ...

    def rows(self, episodes: Sequence[Any]) -> DataProto | None:
        """Return the batch of `result`, as far as it can be known without the other groups of the
        step.
        """
        ...

    async def result(self, episodes: Sequence[Any]) -> EpisodeBatch:
        """Return the result of whole groups, which is that of `EpisodeCollector.collect` for the
        same episodes.
        """
        ...


class EpisodeCollector(Protocol):
    """Runs the team on tasks."""

    async def collect(
        self,
        tasks: Sequence[Any],
        n: int,
        *,
        step: int,
        validate: bool = False,
        greedy: bool = False,
        attempt: int = 0,
    ) -> EpisodeBatch:
        """Run `n` episodes of every task. Raises if too many of them fail.

        Args:
            tasks: of the data set.
            n: episodes per task.
            step: training step.
            validate: sample as in validation.
            greedy: decode greedily; group names end in `GREEDY_SUFFIX`.
            attempt: index of this collection in the step; each has its own seeds and group names.
        """
        ...

    def groups(self, window: int) -> AbstractAsyncContextManager[EpisodeGroupPlayer]:
        """Return a context with a player of single groups; of the last `window` episodes not too
        many may fail.
        """
        ...

    def save_episodes(self, episodes: Sequence[Any], folder: Path) -> None:
        """Write played episodes exactly, for a checkpoint."""
        ...

    def load_episodes(self, folder: Path) -> Sequence[Any]:
        """Return the episodes of `save_episodes`."""
        ...

    def set_theta(self, theta: float) -> None:
        """Set `reward.propagation.theta` for later episodes."""
        ...

    def join(self, results: Sequence[Any], validate: bool = False) -> EpisodeBatch:
        """Join several collections of one step, or of one validation (`validate`): rows and episodes
        in their order, metrics over all of them.
        """
        ...
