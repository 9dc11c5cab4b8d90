"""What a step without a sample says."""

from types import SimpleNamespace
from typing import Any

import pytest

from verl.trainer.ppo.collect.step_samples import samples_of


@pytest.mark.parametrize(
    ("tokens", "said"), [(0, ": no call of an agent reached an engine of the run"), (7, "")]
)
def test_episodes_without_calls_are_told_from_those_whose_calls_are_not_trained(
    tokens: int, said: str
) -> None:
    """A program that keeps its own client plays whole episodes and calls none of the run's agents."""
    episodes = [
        SimpleNamespace(reply_tokens=tokens, failure=None),
        SimpleNamespace(reply_tokens=9, failure="x"),
    ]
    result: Any = SimpleNamespace(batch=None, episodes=episodes, metrics={})
    assert samples_of(result).no_batch_reason == f"no episode has a sample to train on{said}"
