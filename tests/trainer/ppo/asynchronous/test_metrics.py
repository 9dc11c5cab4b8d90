"""What the metrics of asynchronous steps count."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from verl.protocol import DataProto
from verl.trainer.ppo.asynchronous.metrics import length_ratio, partial_metrics


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


def test_the_length_ratio_is_below_one_where_long_episodes_are_dropped() -> None:
    trained = [Ended(10), Ended(20), Ended(99, "failed")]
    assert length_ratio(trained, []) == length_ratio([], []) == 1
    assert length_ratio(trained, [Ended(60), Ended(70, "failed")]) == pytest.approx(15 / 30)
    assert length_ratio(trained, [Ended(0)]) == pytest.approx(15 / 10)
