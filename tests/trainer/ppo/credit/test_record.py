"""`credit/` has what every trained row was given, and why groups were left out."""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from verl.protocol import DataProto
from verl.trainer.config import AlgorithmConfig, KLCtrlConfig
from verl.trainer.ppo.collect.step_samples import StepSamples
from verl.trainer.ppo.credit.advantage import compute_advantage
from verl.trainer.ppo.credit.record import (
    credit_columns,
    groups_left_out,
    moving_averages,
    write_credit,
)
from verl.trainer.ppo.credit.token_log import draw_rows

MASK = torch.tensor([[1, 1, 0], [1, 1, 1], [0, 0, 0], [1, 0, 1]])


def batch(**tensors: Any) -> DataProto:
    """Four rows of two groups: the third one without a token that is kept."""
    rows = {
        "traj_uid": ["step1/a/0#0", "step1/a/0#1", "step1/a/0#1", "step1/b/0#0"],
        "uid": ["step1/a/0"] * 3 + ["step1/b/0"],
        "turn": [1, 1, 2, 1],
        "call": [0, 0, 0, 1],
        "candidate": [0] * 4,
        "agent_id": ["Solver"] * 4,
        "policy_id": ["solver"] * 4,
        "data_source": ["toy"] * 4,
    }
    base = {
        "response_mask": MASK.clone(),
        "advantages": torch.tensor([[1.0, 3.0, 9.0], [-1.0, -1.0, -1.0], [5.0, 5.0, 5.0], [0.5, 9.0, -0.5]]),
        "rollout_log_probs": torch.tensor(
            [[-1.0, -2.0, 0.0], [-0.5, -0.25, -0.25], [0.0, 0.0, 0.0], [-3.0, 0.0, -1.0]]
        ),
    }
    return DataProto.from_dict(
        tensors=base | tensors,
        non_tensors={name: np.array(values, dtype=object) for name, values in rows.items()},
    )


def test_a_row_has_its_advantage_over_kept_tokens_and_the_samplers_log_prob() -> None:
    columns = credit_columns(batch(), AlgorithmConfig())
    assert columns["tokens"] == [2, 3, 0, 2]
    assert columns["advantage"] == [2.0, -1.0, 0.0, 0.0]
    assert columns["abs"] == [2.0, 1.0, 0.0, 0.5]
    assert columns["logp"] == [-3.0, -1.0, 0.0, -4.0]
    assert columns["group"] == [0, 0, 0, 1]
    assert {len(values) for values in columns.values()} == {4}
    for absent in ("baseline", "kl", "weight", "is_weight", "old_logp", "entropy", "log_prob_after"):
        assert absent not in columns


def test_what_only_some_runs_have_is_a_column_where_it_exists() -> None:
    scores = torch.zeros(4, 3)
    data = batch(
        reply_mask=torch.ones(4, 3),
        old_log_probs=torch.full((4, 3), -1.0),
        entropys=torch.tensor([[1.0, 2.0, 3.0]]).expand(4, 3).clone(),
        rollout_is_weights=torch.full((4, 3), 0.5),
        row_weights=torch.tensor([1.0, 0.0, 1.0, math.nan]),
        token_level_scores=scores,
        token_level_rewards=scores - 0.25,
        values=torch.tensor([[1.0, 2.0, 3.0]]).expand(4, 3).clone(),
    )
    columns = credit_columns(data, AlgorithmConfig(kl_ctrl=KLCtrlConfig(0.001)))
    # tokens that were rejected were sampled all the same
    assert columns["old_logp"] == [-3.0] * 4
    assert columns["entropy"] == [1.5, 2.0, 0.0, 2.0]
    assert columns["is_weight"] == [0.5, 0.5, 0.0, 0.5]
    assert columns["weight"] == [1.0, 0.0, 1.0, None]
    assert columns["kl"] == [0.75] * 4
    assert columns["baseline"] == [1.0] * 4
    json.dumps(columns, allow_nan=False)


def test_a_rejected_row_has_the_value_of_its_reply_and_m2po_comes_later() -> None:
    values = torch.tensor([[1.0, 2.0, 3.0]]).expand(4, 3).clone()
    replies = torch.tensor([[1, 1, 1], [1, 1, 1], [0, 1, 1], [1, 1, 1]])
    rejected = torch.tensor([[0, 1, 1], [1, 1, 1], [0, 0, 0], [0, 0, 1]])
    data = batch(response_mask=rejected, reply_mask=replies, values=values, credit_mask=rejected)
    assert credit_columns(data, AlgorithmConfig())["baseline"] == [2.0, 1.0, 2.0, 3.0]
    data = batch(response_mask=torch.zeros(4, 3), credit_mask=rejected)
    assert credit_columns(data, AlgorithmConfig())["tokens"] == [2, 3, 0, 1]


def test_the_baseline_of_a_greedy_episode_or_of_a_moving_average_is_that_of_the_row() -> None:
    data = batch()
    data.non_tensor_batch["reward_baselines"] = np.array([0.1, 0.2, 0.3, 0.4])
    assert credit_columns(data, AlgorithmConfig())["baseline"] == [0.1, 0.2, 0.3, 0.4]
    averages = torch.tensor([0.5, math.nan, 0.5, 0.5], dtype=torch.float64)
    columns = credit_columns(batch(moving_average=averages), AlgorithmConfig())
    assert columns["baseline"] == [0.5, None, 0.5, 0.5]


@pytest.mark.parametrize("order", ["subtract_first", "update_first"])
def test_the_moving_average_is_what_the_estimator_subtracted(order: str) -> None:
    algorithm = AlgorithmConfig(adv_estimator="rae")
    algorithm.rae.order = order
    rewards = torch.zeros(4, 3)
    rewards[torch.arange(4), torch.tensor([1, 2, 0, 2])] = torch.tensor([1.0, 0.0, 0.0, 4.0])
    state: dict[str, Any] = {"rae": {'["toy", "Solver"]': 0.75}}
    before = dict(state["rae"])
    data = compute_advantage(
        batch(token_level_rewards=rewards), "rae", config=algorithm, state=state, num_repeat=2
    )
    baseline = moving_averages(data, algorithm, before, state["rae"])
    outcome = torch.tensor([1.0, 0.0, 4.0], dtype=torch.float64)
    expected = outcome - data.batch["advantages"][[0, 1, 3], 0].double()
    assert torch.allclose(baseline[[0, 1, 3]], expected, atol=1e-6)


@dataclass
class Episode:
    uid: str
    failure: str | None = None


def test_every_group_without_a_row_has_a_cause() -> None:
    episodes: Any = [
        Episode("step1/a/0"),
        Episode("step1/a/0", "TimeoutError"),
        Episode("step1/b/0"),
        Episode("step1/c/0", "KeyError"),
        Episode("step1/a/0/greedy"),
        Episode("step1/d/0"),
        Episode("step1/e/0"),
    ]
    samples = StepSamples(None, episodes, {}, 0, left_out={"step1/d/0": "no signal"})
    assert groups_left_out(samples, batch()) == {
        "step1/c/0": "failed",
        "step1/a/0/greedy": "greedy",
        "step1/d/0": "no signal",
        "step1/e/0": "no sample",
    }


def test_the_file_is_whole_valid_json_of_about_120_bytes_a_row(tmp_path: Path) -> None:
    count = 256
    data = DataProto.concat([batch(advantages=torch.randn(4, 3)) for _ in range(count // 4)])
    write_credit(tmp_path, 7, StepSamples(None, (), {}, 0), data, AlgorithmConfig())
    path = tmp_path / "credit" / "step_000007.json"
    content = json.loads(path.read_text())
    assert (content["format"], content["step"], content["left_out"]) == (1, 7, {})
    assert len(content["columns"]["advantage"]) == count
    assert path.stat().st_size / count < 130
    assert list(path.parent.iterdir()) == [path]


def test_tokens_are_recorded_of_drawn_rows_with_a_kept_token() -> None:
    data = batch()
    chosen = draw_rows(data, 2)
    assert chosen.sum() == 2 and not chosen[2]
    assert draw_rows(data, 9).tolist() == [True, True, False, True]
    afters = np.full(4, None, dtype=object)
    afters[3] = [-2.5, -0.5, -1.25]
    data.non_tensor_batch["log_prob_after"] = afters
    columns = credit_columns(data, AlgorithmConfig())
    assert columns["log_prob_after"] == [None, None, None, [-2.5, None, -1.25]]
    assert columns["log_prob_before"] == [None, None, None, [-3.0, None, -1.0]]
    assert columns["token_advantages"] == [None, None, None, [0.5, None, -0.5]]
    assert "token_values" not in columns
