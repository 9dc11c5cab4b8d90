"""Metrics leave padding out, and validation averages tasks, not rows."""

import numpy as np
import pytest
import torch

from verl.protocol import DataProto
from verl.trainer.config import AlgorithmConfig
from verl.trainer.ppo.metric_utils import (
    bootstrap_metric,
    calc_maj_val,
    compute_agent_metrics,
    compute_data_metrics,
    compute_seqlen_metrics,
    compute_throughout_metrics,
    compute_timing_metrics,
    compute_variance_proxy_metrics,
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
    return DataProto.from_dict(
        tensors=tensors, non_tensors={k: np.array(v, dtype=object) for k, v in names.items()}
    )


def test_padding_rows_are_in_no_metric() -> None:
    metrics = compute_data_metrics(batch(), use_critic=False)
    assert metrics["critic/score/mean"] == 2.0
    assert metrics["critic/score/max"] == 3.0
    assert metrics["critic/advantages/mean"] == pytest.approx(1 / 3)
    assert metrics["response_length/mean"] == 1.5
    assert metrics["prompt_length/mean"] == 2.5
    assert metrics["response/aborted_ratio"] == pytest.approx(1 / 3)
    assert metrics["response_length_non_aborted/mean"] == 1.5


def test_values_are_compared_with_returns_and_widths_with_lengths() -> None:
    data = batch()
    data.batch["values"] = torch.tensor([[1.0, 1.0], [3.0, 0.0], [50.0, 50.0]])
    data.non_tensor_batch["__num_turns__"] = np.array([2, 4, 90])
    metrics = compute_data_metrics(data)
    # returns 0, 1, 3 (variance 7/3) and values 1, 1, 3 on the three tokens: errors -1, 0, 0 (variance 1/3)
    assert metrics["critic/vf_explained_var"] == pytest.approx(1 - (1 / 3) / (7 / 3), abs=1e-5)
    assert metrics["critic/values/mean"] == pytest.approx(5 / 3)
    assert metrics["response_length/clip_ratio"] == 0.5 and metrics["prompt_length/clip_ratio"] == 0.5
    assert metrics["num_turns/mean"] == 3.0
    assert "response_length/clip_ratio" not in compute_data_metrics(data, fixed_width=False)


def test_a_row_is_clipped_when_its_limit_cut_it_and_not_when_it_is_the_widest() -> None:
    data = batch()
    data.non_tensor_batch["response_clipped"] = np.array([False, True, True], dtype=object)
    data.non_tensor_batch["prompt_clipped"] = np.array([False, False, True], dtype=object)
    for fixed_width in (True, False):
        metrics = compute_data_metrics(data, use_critic=False, fixed_width=fixed_width)
        assert (
            metrics["response_length/clip_ratio"] == metrics["response_length_non_aborted/clip_ratio"] == 0.5
        )
        assert metrics["prompt_length/clip_ratio"] == 0.0


def test_a_ranks_tokens_before_and_after_rows_were_moved() -> None:
    # ranks get 9 + 7 and 1 + 2 as rows came, 9 + 1 and 7 + 2 as they were arranged
    assert compute_seqlen_metrics([9, 7, 1, 2], np.array([0, 2, 1, 3]), 2) == {
        "global_seqlen/min": 3.0,
        "global_seqlen/max": 16.0,
        "global_seqlen/minmax_diff": 13.0,
        "global_seqlen/balanced_min": 9.0,
        "global_seqlen/balanced_max": 10.0,
        "global_seqlen/mean": 9.5,
    }


def test_the_gradients_noise_by_hand() -> None:
    half = torch.log(torch.tensor(0.5))
    tensors = {
        "response_mask": torch.tensor([[1, 1], [1, 0], [0, 0]]),
        "old_log_probs": half.expand(3, 2).clone(),
        "sum_pi_squared": torch.full((3, 2), 0.5),
        "advantages": torch.tensor([[2.0, 2.0], [1.0, 7.0], [9.0, 9.0]]),
    }
    # 1 - 2/2 + 1/2 = 1/2 a token: W = 1 and 1/2; A^2 W = 4 and 1/2, their mean 2.25
    metrics = compute_variance_proxy_metrics(DataProto.from_dict(tensors), gradient_norm=1.5)
    assert metrics["variance_proxy/proxy2_total_power"] == pytest.approx(2.25)
    assert metrics["variance_proxy/proxy1_signal_strength"] == 2.25 and metrics[
        "variance_proxy/proxy3_pure_noise"
    ] == pytest.approx(0, abs=1e-6)
    assert metrics["variance_proxy/expected_a_squared"] == pytest.approx(2.5) and metrics[
        "variance_proxy/expected_w"
    ] == pytest.approx(0.75)
    halved = compute_variance_proxy_metrics(
        DataProto.from_dict(tensors | {"rollout_is_weights": torch.full((3, 2), 0.5)})
    )
    assert halved["variance_proxy/proxy2_total_power"] == pytest.approx(2.25 / 4) and halved[
        "variance_proxy/expected_w"
    ] == pytest.approx(0.75 / 4)
    assert compute_variance_proxy_metrics(batch()) == {}


def test_agents_metrics_by_hand() -> None:
    metrics = compute_agent_metrics(batch())
    assert metrics == {"agent/a_b/advantage_abs": 0.25, "agent/a_b/zero_signal_groups": 0.5}


def test_agents_that_share_a_policy_have_their_parts_of_its_gradient() -> None:
    columns = {
        "agent_id": ["A", "B", "A", "C", "B"],
        "policy_id": ["p", "p", "p", "C", "p"],
        "uid": ["x"] * 5,
    }
    data = DataProto.from_dict(
        tensors={
            "advantages": torch.tensor([[1.0, -1.0], [0.0, 4.0], [1.0, 0.0], [9.0, 9.0], [5.0, 5.0]]),
            "response_mask": torch.tensor([[1, 1], [1, 1], [1, 0], [1, 1], [0, 0]]),
        },
        non_tensors={k: np.array(v, dtype=object) for k, v in columns.items()},
    )
    shares = {name: value for name, value in compute_agent_metrics(data).items() if "gradient_share" in name}
    assert shares == {
        "agent/a/gradient_share": pytest.approx(3 / 7),
        "agent/b/gradient_share": pytest.approx(4 / 7),
    }


def test_groups_without_a_signal_are_counted_by_the_runs_own_key_and_by_turn() -> None:
    # A: groups (uid) x has a signal in turn 2 only, y has none; B: its own key makes each turn of x a group
    # of its own.
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
    data = batch()
    assert compute_throughout_metrics(data, timing, 2)["perf/throughput"] == pytest.approx(11 / 22)
    data.meta_info["global_token_num"] = [20, 24]
    assert compute_throughout_metrics(data, timing, 2)["perf/throughput"] == pytest.approx(44 / 22)


def test_validation_weighs_tasks_equally() -> None:
    nested = process_validation_metrics(["d"] * 4, ["t1", "t1", "t1", "t2"], {"acc": [1.0, 1.0, 1.0, 0.0]})
    means = nested["d"]["acc"]
    assert means["mean@3"] == 0.5, "tasks weigh the same, and one name holds them all"
    assert "mean@1" not in means
    uniform = process_validation_metrics(
        ["d"] * 4, ["t1", "t1", "t2", "t2"], {"acc": [1.0, 0.0, 0.0, 0.0], "pred": ["a", "b", "c", "c"]}
    )
    assert uniform["d"]["acc"]["mean@2"] == 0.25
    assert uniform["d"]["acc"]["best@2/mean"] == pytest.approx(0.375, abs=0.03)
    assert "maj@2/mean" in uniform["d"]["acc"]
    assert "pred" not in uniform["d"]


def test_rows_that_never_came_count_as_wrong_where_accuracy_is_reported() -> None:
    sources, tasks = ["math", "math", "maze"], ["t1", "t1", "m1"]
    values = {"acc": [1.0, 1.0, None], "reward": [1.0, 0.0, 0.5]}
    nested = process_validation_metrics(
        sources, tasks, values, expected_acc_counts={("math", "t1"): 4, ("math", "t2"): 4, ("maze", "m1"): 4}
    )
    assert nested["math"]["acc"]["mean@4"] == 0.25, "t1: 2 of 4, t2: none of 4"
    assert nested["math"]["acc_success_only"]["mean@2"] == 1.0
    assert nested["maze"].keys() == {"reward"} and nested["math"]["reward"]["mean@2"] == 0.5


def test_the_bootstrap_leaves_numpys_random_state_alone() -> None:
    np.random.seed(3)
    before = np.random.get_state()[1].copy()
    [(mean, _)] = bootstrap_metric([1.0, 2.0], 1, [np.mean])
    assert mean == pytest.approx(1.5, abs=0.1) and (np.random.get_state()[1] == before).all()


def test_majority_and_reduction() -> None:
    assert calc_maj_val([{"p": "a", "v": 1}, {"p": "b", "v": 2}, {"p": "b", "v": 3}], "p", "v") == 2
    assert reduce_metrics({"x/mean": [1, 3], "x/max": [1, 3], "x/min": [1, 3]}) == {
        "x/mean": 2,
        "x/max": 3,
        "x/min": 1,
    }
