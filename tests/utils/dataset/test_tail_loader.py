"""The order of tasks with `data.tail_window`."""

import asyncio
import pickle
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from verl.trainer.config import DataConfig, RunConfig
from verl.trainer.ppo.collect.source import collect_step
from verl.utils.data_file import DatasetError
from verl.utils.dataset import TaskLoader, build_loader
from verl.utils.dataset.tail_loader import TailLoader, note_lengths


@dataclass
class Tasks:
    """Tasks that are their index."""

    size: int

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, item: int) -> Any:
        return SimpleNamespace(task_id=f"task:{item}")


def played(loader: TailLoader, steps: int, lengths: dict[int, int]) -> list[list[int]]:
    """Draw steps and tell the lengths of their tasks; return their tasks."""
    drawn = []
    for _ in range(steps):
        drawn.append(loader.take(loader.batch_size))
        note_lengths(
            loader,
            drawn[-1],
            [
                SimpleNamespace(task_id=f"task:{i}", reply_tokens=tokens)
                for i in drawn[-1]
                for tokens in (lengths[i], lengths[i] // 2)
            ],
        )
    return drawn


@settings(deadline=None)
@given(
    st.integers(4, 40), st.integers(1, 4), st.integers(2, 5), st.integers(0, 3), st.booleans(), st.randoms()
)
def test_each_task_is_drawn_once_an_epoch_from_its_own_window_by_length(
    size: int, batch: int, window: int, seed: int, shuffle: bool, random: Any
) -> None:
    if size // batch < window:
        with pytest.raises(DatasetError, match=r"data\.tail_window"):
            TailLoader(Tasks(size), batch, seed=seed, shuffle=shuffle, window=window)
        return
    plain = TaskLoader(Tasks(size), batch, seed=seed, shuffle=shuffle)
    loader = TailLoader(Tasks(size), batch, seed=seed, shuffle=shuffle, window=window)
    lengths = {i: random.randrange(1, 1000) for i in range(size)}
    steps = len(loader)
    first = played(loader, steps, lengths)
    assert [*chain(*first)] == plain.order(0)[: steps * batch].tolist(), "no length is known yet"
    second = played(loader, steps, lengths)
    expected = plain.order(1)[: steps * batch]
    known = {i for step in first for i in step}
    for start in range(0, steps, window):
        part = second[start : start + window]
        assert sorted(chain(*part)) == sorted(expected[start * batch : (start + window) * batch])
        if not {i for step in part for i in step} <= known:
            continue
        by_length = sorted(part, key=lambda step: max(lengths[i] for i in step))
        flat = [lengths[i] for step in by_length for i in sorted(step, key=lengths.__getitem__)]
        assert flat == sorted(flat), "a longer task is in a step of longer ones"


def test_tasks_that_were_never_played_count_as_the_median() -> None:
    loader = TailLoader(Tasks(6), 2, shuffle=False, window=3)
    loader.note({0: 100, 1: 1, 2: 50, 3: 90})
    assert loader.take(6) == [1, 2, 4, 5, 3, 0]


def test_a_resumed_run_draws_what_the_other_would_have_drawn(tmp_path: Path) -> None:
    lengths = {i: (i * 37) % 11 + 1 for i in range(13)}
    for done in range(12):
        loader, again = (TailLoader(Tasks(13), 2, seed=3, window=3) for _ in range(2))
        played(loader, done, lengths)
        torch.save(loader.state_dict(), tmp_path / "data.pt")
        again.load_state_dict(torch.load(tmp_path / "data.pt", weights_only=True))
        assert played(again, 14, lengths) == played(loader, 14, lengths)


def test_a_draw_that_is_undone_is_made_again() -> None:
    lengths = {i: (i * 37) % 11 + 1 for i in range(12)}
    loader = TailLoader(Tasks(12), 2, seed=3, window=3)
    played(loader, 5, lengths)
    for _ in range(3):
        state = pickle.dumps(loader.state_dict())
        drawn = played(loader, 2, lengths)
        loader.load_state_dict(pickle.loads(state))
        assert played(loader, 2, lengths) == drawn


@pytest.mark.parametrize(("saved", "window"), [(0, 2), (2, 0), (2, 3)])
def test_a_checkpoint_of_another_window_is_refused(saved: int, window: int) -> None:
    source = Tasks(8)
    state = build_loader(source, DataConfig(train_batch_size=2, tail_window=saved)).state_dict()
    with pytest.raises(
        DatasetError, match=rf"had tail_window={saved}, this run has {window}: restore data.tail_w"
    ):
        build_loader(source, DataConfig(train_batch_size=2, tail_window=window)).load_state_dict(state)


class Replies:
    """A collector whose replies to task i have `lengths[i]` tokens."""

    lengths = (5, 90, 7, 80, 6, 70)

    async def collect(self, tasks: list[Any], n: int, **_: Any) -> Any:
        episodes = [
            SimpleNamespace(
                task_id=task.task_id,
                reply_tokens=self.lengths[int(task.task_id.partition(":")[2])],
                failure=None,
            )
            for task in tasks
            for _ in range(n)
        ]
        return SimpleNamespace(batch=None, episodes=episodes, metrics={})


def test_a_synchronous_run_plays_the_long_tasks_of_its_last_epoch_together() -> None:
    config = RunConfig()
    config.data.train_batch_size = 2
    config.data.tail_window = 3
    loader = build_loader(Tasks(6), config.data)
    steps = []
    for step in range(9):
        plan: Any = SimpleNamespace(greedy_episodes=False)
        samples = asyncio.run(collect_step(config, plan, Replies(), loader, step))
        steps.append({episode.reply_tokens // 10 for episode in samples.episodes})
    assert {9, 8} in steps[3:6] and {9, 8} in steps[6:]
    assert {0} in steps[3:6] and {7, 0} in steps[3:6]


def test_a_checkpoint_of_before_is_read() -> None:
    loader = TaskLoader(Tasks(8), 2)
    state = {name: value for name, value in loader.state_dict().items() if name != "tail_window"}
    loader.load_state_dict(state | {"position": 4})
    assert loader.position == 4
    assert not np.array_equal(loader.order(0), loader.order(1))
