"""The loader that a configuration asks for."""

from __future__ import annotations

from verl.trainer.config import DataConfig
from verl.utils.dataset.loader import TaskLoader, TaskSource


def build_loader(source: TaskSource, data: DataConfig) -> TaskLoader:
    """Return the loader of the training tasks. Raises DatasetError as its class does."""
    if data.tail_window:
        from verl.utils.dataset.tail_loader import TailLoader  # of this key alone

        return TailLoader(
            source, data.train_batch_size, seed=data.seed, shuffle=data.shuffle, window=data.tail_window
        )
    return TaskLoader(source, data.train_batch_size, seed=data.seed, shuffle=data.shuffle)
