import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from verl.utils.dataset import DatasetError, TaskLoader, collate_fn

SOURCE = [{"i": i} for i in range(10)]


def drawn(loader: TaskLoader, epochs: int) -> list[list[int]]:
    return [[row["i"] for row in batch] for _ in range(epochs) for batch in loader]


def test_an_epoch_draws_every_task_once_and_the_next_differs():
    loader = TaskLoader(SOURCE, 5, seed=1)
    first, second = drawn(loader, 1), drawn(loader, 1)
    assert (
        sorted(i for batch in first for i in batch)
        == sorted(i for batch in second for i in batch)
        == list(range(10))
    )
    assert first != second and loader.epoch == 2


def test_order_follows_the_seed_alone():
    assert drawn(TaskLoader(SOURCE, 3, seed=4), 3) == drawn(TaskLoader(SOURCE, 3, seed=4), 3)
    assert drawn(TaskLoader(SOURCE, 3, seed=4), 3) != drawn(TaskLoader(SOURCE, 3, seed=5), 3)


@settings(max_examples=40, deadline=None)
@given(
    size=st.integers(1, 12),
    batch=st.integers(1, 5),
    taken=st.integers(0, 14),
    drop_last=st.booleans(),
    seed=st.integers(0, 3),
)
def test_resume_anywhere_continues_as_if_never_stopped(size, batch, taken, drop_last, seed):
    source = [{"i": i} for i in range(size)]
    batch = min(batch, size)

    def stream(loader: TaskLoader):
        while True:
            yield from loader

    def take(loader: TaskLoader, n: int) -> list[list[int]]:
        flow = stream(loader)
        return [[row["i"] for row in next(flow)] for _ in range(n)]

    whole = take(TaskLoader(source, batch, seed=seed, drop_last=drop_last), taken + 6)
    stopped = TaskLoader(source, batch, seed=seed, drop_last=drop_last)
    take(stopped, taken)
    resumed = TaskLoader(source, batch, seed=seed, drop_last=drop_last)
    resumed.load_state_dict(json.loads(json.dumps(stopped.state_dict())))
    assert take(resumed, 6) == whole[taken:]


def test_last_batch_is_dropped_in_training_and_short_in_validation():
    assert [len(b) for b in TaskLoader(SOURCE, 4)] == [4, 4]
    validation = TaskLoader(SOURCE, 4, shuffle=False, drop_last=False)
    assert drawn(validation, 1) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert len(TaskLoader(SOURCE, 4)) == 2 and len(validation) == 3
    assert [len(b) for b in TaskLoader(SOURCE, 0, drop_last=False)] == [10]


def test_batch_larger_than_the_data_is_an_error():
    with pytest.raises(DatasetError, match=r"10 tasks do not fill .*data\.train_batch_size=16"):
        TaskLoader(SOURCE, 16)


@pytest.mark.parametrize(
    ("change", "fix"),
    [({"size": 9}, "data.train_files"), ({"seed": 7}, "data.seed"), ({"shuffle": 0}, "shuffle")],
)
def test_state_of_other_data_is_refused(change, fix):
    loader = TaskLoader(SOURCE, 2)
    with pytest.raises(DatasetError, match=fix):
        loader.load_state_dict(loader.state_dict() | change)


def test_collate_stacks_tensors_and_keeps_lists_as_objects():
    columns = collate_fn(
        [
            {"t": torch.tensor([1, 2]), "m": [{"a": 1}], "s": "x"},
            {"t": torch.tensor([3, 4]), "m": [{"a": 2}], "s": "y"},
        ]
    )
    assert torch.equal(columns["t"], torch.tensor([[1, 2], [3, 4]]))
    assert columns["m"].shape == (2,) and columns["m"][1] == [{"a": 2}]
    assert isinstance(columns["s"], np.ndarray) and columns["s"].dtype == object


def test_collate_refuses_rows_of_different_columns():
    with pytest.raises(DatasetError, match="columns b"):
        collate_fn([{"a": 1}, {"a": 1, "b": 2}])


def test_taking_walks_on_through_epochs_and_no_task_comes_twice():
    loader, batches = TaskLoader(SOURCE, 4, seed=2), TaskLoader(SOURCE, 4, seed=2)
    expected = [i for epoch in drawn(batches, 2) for i in epoch]
    assert [*loader.take(4), *loader.take(4)] == expected[:8]
    assert loader.state_dict() | {"epoch": 1, "position": 0} == loader.state_dict()
    first = loader.take(6)
    assert len(set(first)) == 6 and first[:4] == expected[8:12]


def test_taking_passes_over_excluded_tasks_and_stops_after_a_whole_epoch():
    loader = TaskLoader(SOURCE, 5, shuffle=False)
    assert loader.take(3, exclude={1, 2}) == [0, 3, 4]
    assert (loader.epoch, loader.position) == (0, 5)
    assert loader.take(5, exclude=set(range(8))) == [8, 9]
    assert (loader.epoch, loader.position) == (1, 0)
    before = loader.state_dict()
    assert loader.take(1, exclude=set(range(10))) == []
    assert loader.state_dict() == before
