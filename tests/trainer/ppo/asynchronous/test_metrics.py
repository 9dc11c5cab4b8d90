"""What the metrics of asynchronous steps count."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from verl.protocol import DataProto
from verl.trainer.plan.learners import Pace
from verl.trainer.ppo.asynchronous.group_queue import GroupQueue
from verl.trainer.ppo.asynchronous.metrics import count_metrics, length_ratio, partial_metrics


@dataclass
class Ended:
    """An episode as `length_ratio` reads it."""

    reply_tokens: int
    failure: str | None = None


def test_partial_replies_are_those_of_several_versions() -> None:
    columns = {"replies": [1, 3, 1, 1], "partial_replies": [0, 2, 1, 0], "partial_span": [0, 3, 1, 0]}
    rows = {name: np.array(values, dtype=object) for name, values in columns.items()}
    batch = DataProto.from_dict(tensors={"responses": torch.zeros(4, 1)}, non_tensors=rows)
    wanted = {"total_partial_num": 3.0, "partial_ratio": 0.5, "max_partial_span": 3.0}
    assert partial_metrics(batch) == {f"fully_async/partial/{name}": value for name, value in wanted.items()}


def counts(queue: GroupQueue) -> dict[str, float]:
    return {name.rpartition("/")[2]: value for name, value in count_metrics(queue).items()}


def test_groups_are_counted_under_the_names_of_verl_too() -> None:
    """Two policies, one of which is published later; step 3 trains on groups of versions 0 and 2."""
    queue: GroupQueue = GroupQueue(1, {"p": Pace(2.0, bound=5), "q": Pace(2.0, bound=5)})
    slow, *others = (queue.dispatch(place, 0, 0) for place in range(3))
    for step, group in enumerate(others, 1):
        queue.move("complete", group)
        assert queue.take(step) == [group]
        queue.close(step)
        queue.versions["p"] = step
    queue.versions["q"] = 1
    queue.move("complete", queue.dispatch(3, 0, 0))
    assert queue.stale == 1 and queue.bounded == 2 + 1
    queue.move("complete", slow)
    assert queue.take(3) == [slow]
    wanted = {
        "dispatched": 4, "trained": 2, "training": 1, "failed": 0, "rejected": 0, "dropped_stale_samples": 0,
        "running": 0, "complete": 1,
        "total_generated_samples": 4, "staleness_samples": 1 + 2, "stale_samples_processed": 1,
    }  # fmt: skip
    assert counts(queue) == wanted
    queue.close(3)
    assert counts(queue) == wanted | {"trained": 3, "training": 0, "stale_samples_processed": 2}


def test_the_length_ratio_is_below_one_where_long_episodes_are_dropped() -> None:
    trained = [Ended(10), Ended(20), Ended(99, "failed")]
    assert length_ratio(trained, []) == length_ratio([], []) == 1
    assert length_ratio(trained, [Ended(60), Ended(70, "failed")]) == pytest.approx(15 / 30)
    assert length_ratio(trained, [Ended(0)]) == pytest.approx(15 / 10)
