"""Metrics leave padding out, and validation averages tasks, not rows."""

import numpy as np
import pytest
import torch

from verl.protocol import DataProto
from verl.trainer.config import AlgorithmConfig
from verl.trainer.ppo.metric_utils import (
    calc_maj_val,
    compute_agent_metrics,
    compute_data_metrics,
    compute_throughout_metrics,
    compute_timing_metrics,
    process_validation_metrics,
    reduce_metrics,
)


def batch() -> DataProto:
    mask = torch.tensor([[1, 1], [1, 0], [0, 0]])
    score = torch.tensor([[0.0, 1.0], [3.0, 0.0], [0.0, 99.0]])
    tensors = {
        "responses": torch.zeros(3, 2, dtype=torch.long),
        "response_mask": mask,
        "attention_mask": torch.cat([torch.tensor([[1, 1, 1], [0, 1, 1], [1, 1, 1]]), mask], dim=1),
        "token_level_scores": score,
        "token_level_rewards": score,
        "advantages": torch.tensor([[0.5, 0.5], [0.0, 0.0], [9.0, 9.0]]),
        "returns": score,
    }
    names = {"agent_id": ["A b", "A b", "A b"], "uid": ["x", "y", "z"]}
    return DataProto.from_dict(tensors=tensors, non_tensors={k: np.array(v, dtype=object) for k, v in names.items()})


def test_padding_rows_are_in_no_metric() -> None:
    metrics = compute_data_metrics(batch())
    assert metrics["critic/score/mean"] == 2.0
    assert metrics["critic/score/max"] == 3.0
    assert metrics["critic/advantages/mean"] == pytest.approx(1 / 3)
    assert metrics["response_length/mean"] == 1.5
    assert metrics["prompt_length/mean"] == 2.5


def test_agents_metrics_by_hand() -> None:
    metrics = compute_agent_metrics(batch())
    assert metrics == {"agent/a_b/advantage_abs": 0.25, "agent/a_b/zero_signal_groups": 0.5}


def test_groups_without_a_signal_are_counted_by_the_runs_own_key_and_by_turn() -> None:
    # A: groups (uid) x has a signal in turn 2 only, y has none; B: its own key makes each turn of x a group of its own.
    columns = {
        "agent_id": ["A", "A", "A", "B", "B", "B"],
        "uid": ["x", "x", "y", "x", "x", "x"],
        "turn": [1, 2, 1, 1, 2, 1],
    }
    advantages = torch.tensor([[0.0], [1.0], [0.0], [0.0], [2.0], [7.0]])
    data = DataProto.from_dict(
        tensors={"advantages": advantages, "response_mask": torch.tensor([[1], [1], [1], [1], [1], [0]])},
        non_tensors={k: np.array(v, dtype=object) for k, v in columns.items()},
    )
    metrics = compute_agent_metrics(data, AlgorithmConfig(per_agent={"b": {"group_by": ["uid", "turn"]}}))
    assert {k: v for k, v in metrics.items() if "zero" in k} == {
        "agent/a/zero_signal_groups": 0.5,
        "agent/a/turn_1/zero_signal_groups": 1.0,
        "agent/a/turn_2/zero_signal_groups": 0.0,
        "agent/b/zero_signal_groups": 0.5,
        "agent/b/turn_1/zero_signal_groups": 1.0,
        "agent/b/turn_2/zero_signal_groups": 0.0,
    }


def test_time_per_token_and_throughput() -> None:
    timing = {"gen": 3.0, "step": 11.0}
    assert compute_timing_metrics(batch(), timing)["timing_per_token_ms/gen"] == pytest.approx(1000.0)
    assert compute_throughout_metrics(batch(), timing, 2)["perf/throughput"] == pytest.approx(11 / 22)


def test_validation_weighs_tasks_equally() -> None:
    nested = process_validation_metrics(["d"] * 4, ["t1", "t1", "t1", "t2"], {"acc": [1.0, 1.0, 1.0, 0.0]})
    means = nested["d"]["acc"]
    assert means["mean@3"] == 0.5, "tasks weigh the same, and one name holds them all"
    assert "mean@1" not in means
    uniform = process_validation_metrics(["d"] * 4, ["t1", "t1", "t2", "t2"], {"acc": [1.0, 0.0, 0.0, 0.0], "pred": ["a", "b", "c", "c"]})
    assert uniform["d"]["acc"]["mean@2"] == 0.25
    assert uniform["d"]["acc"]["best@2/mean"] == pytest.approx(0.375, abs=0.03)
    assert "maj@2/mean" in uniform["d"]["acc"]
    assert "pred" not in uniform["d"]


def test_majority_and_reduction() -> None:
    assert calc_maj_val([{"p": "a", "v": 1}, {"p": "b", "v": 2}, {"p": "b", "v": 3}], "p", "v") == 2
    assert reduce_metrics({"x/mean": [1, 3], "x/max": [1, 3], "x/min": [1, 3]}) == {"x/mean": 2, "x/max": 3, "x/min": 1}
