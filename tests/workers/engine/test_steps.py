"""How the rows of a policy are cut into mini-batches: exactly so many as asked for, as even as they can be,
on any number of ranks.
"""

from pathlib import Path

import pytest

from tests.workers.engine.builders import ONE_PIECE, make_engine, make_rows
from verl.trainer.config import ActorConfig
from verl.workers.engine import UpdatePlan, update_policy
from verl.workers.engine.steps import even_sizes


@pytest.mark.parametrize(
    ("counts", "updates", "sizes"),
    [
        ([10], 4, [[3, 3, 2, 2]]),
        ([10], 1, [[10]]),
        ([3], 5, [[1, 1, 1]]),
        ([0], 5, [[0]]),
        ([0, 0], 2, [[0], [0]]),
        ([6, 6], 3, [[2, 2, 2], [2, 2, 2]]),
        ([3, 3, 3, 1], 4, [[1, 1, 1, 0], [1, 1, 0, 1], [1, 0, 1, 1], [0, 1, 0, 0]]),
        ([2, 2, 2, 2], 5, [[1, 0, 1, 0, 0], [1, 0, 1, 0, 0], [0, 1, 0, 1, 0], [0, 1, 0, 0, 1]]),
        ([5, 0], 2, [[3, 2], [0, 0]]),
        ([1, 0, 1], 100_000, [[1, 0], [0, 0], [0, 1]]),
    ],
)
def test_mini_batches_differ_by_one_row_over_all_ranks(
    counts: list[int], updates: int, sizes: list[list[int]]
) -> None:
    assert [even_sizes(counts, rank, updates) for rank in range(len(counts))] == sizes
    totals = [sum(part) for part in zip(*sizes, strict=True)]
    assert [sum(own) for own in sizes] == counts and max(totals) - min(totals) <= 1
    assert len(totals) == max(1, min(updates, sum(counts)))


def digest(
    model: Path, count: int, updates: int, adaptive: bool, epochs: int = 1
) -> tuple[dict[str, float], list[float]]:
    """Metrics and some weights after an update of `count` rows (one more is padding)."""
    engine = make_engine(model, lr=1e-2)
    config = ActorConfig(ppo_mini_update_num=updates if adaptive else None, ppo_epochs=epochs)
    plan = UpdatePlan(temperature=0.8, num_mini_batches=updates, shuffle_seed=3, first_update=0)
    metrics = update_policy(engine, config, make_rows(count + 1), plan, ONE_PIECE)
    return metrics, [float(value.double().sum()) for _, value in engine.weights()]


@pytest.mark.parametrize("updates", [1, 3])
def test_on_one_rank_the_same_number_of_mini_batches_gives_the_same_bits(
    tiny_model_dir: Path, updates: int
) -> None:
    by_tasks, weights = digest(tiny_model_dir, 7, updates, adaptive=False)
    by_number, same = digest(tiny_model_dir, 7, updates, adaptive=True)
    assert by_number == by_tasks | {"actor/updates": updates} and same == weights


def test_fewer_rows_than_updates_make_as_many_updates_as_rows(tiny_model_dir: Path) -> None:
    metrics, _ = digest(tiny_model_dir, 3, 8, adaptive=True, epochs=2)
    assert metrics["actor/updates"] == 6
    exactly, _ = digest(tiny_model_dir, 3, 3, adaptive=True, epochs=2)
    assert {**metrics, "actor/lr": 0} == pytest.approx({**exactly, "actor/lr": 0}, rel=1e-9)
    assert digest(tiny_model_dir, 0, 8, adaptive=True)[0] == {"perf/tokens": 0.0, "actor/updates": 0.0}
