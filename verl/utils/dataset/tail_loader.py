"""Batches of tasks whose replies are about equally long: `data.tail_window`.

A step of synchronous training waits for its longest reply. With tasks drawn at random nearly every
step has one; if the tasks with long replies are in the same steps, the others end early. The order
of RollPacker (arXiv 2509.21009), without its racing of replies, which prefers short ones: each task
is played once an epoch, and trained on whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from verl.utils.data_file import DatasetError
from verl.utils.dataset.loader import LoaderState, TaskLoader, TaskSource

UNKNOWN = -1


class TailLoader(TaskLoader):
    """A loader whose epochs are cut into windows of `window` batches: within a window, the tasks
    with the longest replies when they were last played are in one batch, the next ones in another,
    and so on; the batches come in a seeded order.

    A task that has not been played counts as the median one of its window; a window without any
    played task is drawn as by `TaskLoader`. The order of an epoch is a function of (seed, epoch)
    and the lengths that were known when its first task was drawn; both are in the state.

    Args:
        source, batch_size, seed, shuffle: as of `TaskLoader`.
        window: steps, at least 2.

    Raises:
        DatasetError: an epoch has fewer steps than a window, or `TaskLoader` raises it.
    """

    def __init__(
        self, source: TaskSource, batch_size: int, *, seed: int = 0, shuffle: bool = True, window: int
    ) -> None:
        super().__init__(source, batch_size, seed=seed, shuffle=shuffle)
        self.tail_window = window
        if window > len(self):
            raise DatasetError(
                f"data.tail_window={window}: expected at most the steps of an epoch, {len(self)} "
                f"({self.size} tasks, data.train_batch_size={self.batch_size})"
            )
        self._lengths = np.full(self.size, UNKNOWN, dtype=np.int64)
        self._orders: dict[int, np.ndarray] = {}

    def note(self, lengths: Mapping[int, int]) -> None:
        """Remember the reply tokens of tasks, by their index in `source`."""
        for task_index, tokens in lengths.items():
            self._lengths[task_index] = tokens

    def order(self, epoch: int) -> np.ndarray:
        """Return the task indices of an epoch, [size]; those of an incomplete last batch come last."""
        if epoch not in self._orders:
            self._orders = {number: order for number, order in self._orders.items() if number >= self.epoch}
            self._orders[epoch] = self._ordered(super().order(epoch), epoch)
        return self._orders[epoch]

    def _ordered(self, order: np.ndarray, epoch: int) -> np.ndarray:
        end = len(self) * self.batch_size
        width = self.tail_window * self.batch_size
        parts = [
            self._window(order[start : min(start + width, end)], epoch, start)
            for start in range(0, end, width)
        ]
        return np.concatenate([*parts, order[end:]])

    def _window(self, task_indices: np.ndarray, epoch: int, start: int) -> np.ndarray:
        lengths = self._lengths[task_indices].astype(np.float64)
        is_known = lengths != UNKNOWN
        if not is_known.any():
            return task_indices
        lengths[~is_known] = np.median(lengths[is_known])
        batches = task_indices[np.argsort(lengths, kind="stable")].reshape(-1, self.batch_size)
        if self.shuffle:
            # else each window would end with its longest step, and an epoch with a long one
            batches = batches[np.random.default_rng([self.seed, epoch, start]).permutation(len(batches))]
        return batches.ravel()

    def state_dict(self) -> LoaderState:
        """Return position, lengths and the orders of epochs that have begun."""
        return super().state_dict() | {
            "lengths": self._lengths.tolist(),
            "orders": {epoch: order.tolist() for epoch, order in self._orders.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a `state_dict`. Raises DatasetError as `TaskLoader` does, also for another
        window.
        """
        super().load_state_dict(state)
        self._lengths = np.array(state["lengths"], dtype=np.int64)
        self._orders = {int(epoch): np.array(order) for epoch, order in state["orders"].items()}


class LongEpisode(Protocol):
    """What is read of an episode."""

    @property
    def task_id(self) -> str:
        """Its task."""
        ...

    @property
    def reply_tokens(self) -> int:
        """Tokens that engines generated for it."""
        ...


def note_lengths(loader: TaskLoader, task_indices: Sequence[int], episodes: Iterable[LongEpisode]) -> None:
    """Tell a `TailLoader` the longest episode of each task that was just played.

    Args:
        loader: of the run.
        task_indices: in its source, of the tasks.
        episodes: of these tasks.
    """
    assert isinstance(loader, TailLoader)
    longest: dict[str, int] = {}
    for episode in episodes:
        longest[episode.task_id] = max(episode.reply_tokens, longest.get(episode.task_id, 0))
    names = {index: loader.source[index].task_id for index in task_indices}
    loader.note({index: longest[name] for index, name in names.items() if name in longest})
