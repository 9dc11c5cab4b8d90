"""Batches of tasks in a seeded order, which a checkpoint can resume in the middle of an epoch."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence, Sized
from typing import Any, NotRequired, Protocol, TypedDict

import numpy as np
import torch

from verl.utils.data_file import DatasetError, check_batch_size
from verl.utils.dataset.files import Row


class TaskSource(Sized, Protocol):
    """The source of a loader: a length and tasks by index."""

    def __getitem__(self, item: int) -> Any: ...


class LoaderState(TypedDict):
    """Position of a loader: `position` tasks of `epoch` have been drawn; `lengths` and `orders` are of
    `tail_loader.py`.
    """

    epoch: int
    position: int
    seed: int
    size: int
    shuffle: bool
    tail_window: NotRequired[int]
    lengths: NotRequired[list[int]]
    orders: NotRequired[dict[int, list[int]]]


class TaskLoader:
    """Iterating yields the rest of the current epoch as lists of `batch_size` tasks.

    The order of an epoch is a function of (seed, epoch) alone, so a checkpoint needs only the
    position.

    Args:
        source: tasks by index, e.g. `RLHFDataset`.
        batch_size: tasks of a batch; 0 takes all.
        seed: of the shuffles.
        shuffle: a new order every epoch; False keeps the file order.
        drop_last: leave out an incomplete last batch (training); False yields it (validation).

    Raises:
        DatasetError: fewer tasks than one batch with `drop_last`.
    """

    def __init__(
        self,
        source: TaskSource,
        batch_size: int,
        *,
        seed: int = 0,
        shuffle: bool = True,
        drop_last: bool = True,
    ) -> None:
        self.source = source
        self.size = len(source)
        self.batch_size = batch_size or self.size
        self.seed = seed
        self.shuffle = shuffle
        self.drop_last = drop_last
        self.tail_window = 0
        self.epoch = self.position = 0
        self._orders: dict[int, np.ndarray] = {}
        if drop_last:
            check_batch_size(self.size, self.batch_size)

    def __len__(self) -> int:
        """Return the number of batches of an epoch."""
        return self.size // self.batch_size if self.drop_last else -(-self.size // self.batch_size)

    def __iter__(self) -> Iterator[list[Any]]:
        epoch = self.epoch
        order = self.order(self.epoch)
        end = len(self) * self.batch_size
        while self.epoch == epoch and self.position < end:
            task_indices = order[self.position : self.position + self.batch_size]
            self.position += self.batch_size
            if self.position >= end:
                self.epoch = epoch + 1
                self.position = 0
            yield [self.source[int(task_index)] for task_index in task_indices]

    def take(self, count: int, exclude: Collection[int] = ()) -> list[int]:
        """Draw the next `count` distinct tasks that are not in `exclude` and return their indices
        in `source`.

        Continues into the next epoch, to its end at most: with too few tasks the list is shorter,
        with none it is empty and the position does not change. Excluded tasks that are passed over
        count as drawn.
        """
        task_indices: list[int] = []
        passed = set(exclude)
        for task_index, following in self._following():
            if task_index not in passed:
                passed.add(task_index)
                task_indices.append(task_index)
                self.epoch, self.position = following
            if len(task_indices) >= count:
                break
        return task_indices

    def _following(self) -> Iterator[tuple[int, tuple[int, int]]]:
        """Yield the task indices from here to the end of the next epoch, each with the (epoch,
        position) after it.
        """
        end = len(self) * self.batch_size
        for epoch, start in ((self.epoch, self.position), (self.epoch + 1, 0)):
            order = self.order(epoch)
            for position in range(start, end):
                yield int(order[position]), (epoch, position + 1) if position + 1 < end else (epoch + 1, 0)

    def order(self, epoch: int) -> np.ndarray:
        """Return the task indices of an epoch, [size], which must not be changed."""
        # kept while its epoch lasts: each step draws from it, and takes no longer with more tasks
        if epoch not in self._orders:
            order = np.arange(self.size)
            if self.shuffle:
                order = np.random.default_rng([self.seed, epoch]).permutation(self.size)
            self._orders = {e: self._orders[e] for e in self._orders if e == epoch - 1} | {epoch: order}
        return self._orders[epoch]

    def state_dict(self) -> LoaderState:
        """Return the position of the next batch, as plain values for json and torch.save."""
        return {
            "epoch": self.epoch,
            "position": self.position,
            "seed": self.seed,
            "size": self.size,
            "shuffle": self.shuffle,
            "tail_window": self.tail_window,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the position of a `state_dict`. Raises DatasetError when the data or its order
        differs.
        """
        mine = self.state_dict()
        for name, fix in (
            ("size", "data.train_files and data.train_max_samples"),
            ("seed", "data.seed"),
            ("shuffle", "data.shuffle"),
            ("tail_window", "data.tail_window"),
        ):
            saved = state.get(name, 0)  # earlier checkpoints have no window
            if saved != mine[name]:
                raise DatasetError(
                    f"the checkpoint's data had {name}={saved!r}, this run has {mine[name]!r}: restore {fix}"
                )
        self.epoch = int(state["epoch"])
        self.position = int(state["position"])


def collate_fn(rows: Sequence[Row]) -> dict[str, torch.Tensor | np.ndarray]:
    """Return the columns of a batch: tensors are stacked, other values become an object array
    [bsz].

    Raises:
        DatasetError: rows with different columns.
    """
    names = list(rows[0]) if rows else []
    for number, row in enumerate(rows):
        if row.keys() != rows[0].keys():
            differing = sorted(row.keys() ^ rows[0].keys())
            raise DatasetError(
                f"row {number} of the batch differs from row 0 in columns {', '.join(differing)}"
            )
    columns: dict[str, torch.Tensor | np.ndarray] = {}
    for name in names:
        values = [row[name] for row in rows]
        if all(isinstance(value, torch.Tensor) for value in values):
            columns[name] = torch.stack(values)
        else:
            # Filled one by one, because np.array would make a second dimension of lists of equal
            # length.
            columns[name] = np.empty(len(values), dtype=object)
            for position, value in enumerate(values):
                columns[name][position] = value
    return columns
