"""RAE: a moving average of the role's scores."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from verl.trainer.ppo.core_algos import compute_rae_outcome_advantage as rae


def test_by_hand(rows) -> None:
    # decay 1/2, baselines from 0. x: two rows of mean 4, b = 0/4 + 3/4 * 4 = 3; y: one row, b = 0/2 + 2/2 = 1
    state: dict[str, float] = {}
    rewards, mask = rows([3.0, 5.0, 2.0], [3, 1, 3])
    roles = np.array(["x", "x", "y"], dtype=object)
    advantages, returns = rae(rewards, mask, roles, decay=0.5, state=state)
    assert state == {"x": 3.0, "y": 1.0}
    assert advantages.tolist() == [[0.0] * 3, [2.0, 0.0, 0.0], [1.0] * 3]
    assert advantages is returns
    # the next batch has one row of x: b = 3/2 + 7/2 = 5; y keeps its baseline
    config = SimpleNamespace(rae=SimpleNamespace(decay=0.5))
    assert rae(*rows([7.0]), np.array(["x"], dtype=object), config=config, state=state)[0][0, 0] == 2.0
    assert json.loads(json.dumps(state)) == {"x": 5.0, "y": 1.0}


def test_the_update_is_the_mean_over_all_orders_of_one_update_a_trajectory(rows) -> None:
    # orders of (2, 6) from b = 1 with decay 1/2: 1 -> 1.5 -> 3.75 and 1 -> 3.5 -> 2.75, mean 3.25
    state = {"x": 1.0}
    rae(*rows([2.0, 6.0]), np.array(["x", "x"], dtype=object), decay=0.5, state=state)
    assert state["x"] == pytest.approx(3.25)


def test_a_trajectory_updates_once(rows) -> None:
    # trajectories of mean 2 and 6, as above
    state = {"x": 1.0}
    traj = np.array(["t", "t", "u"], dtype=object)
    rae(*rows([1.0, 3.0, 6.0]), np.array(["x"] * 3, dtype=object), traj, decay=0.5, state=state)
    assert state["x"] == pytest.approx(3.25)


def test_the_order_of_rows_changes_no_bit(rows) -> None:
    scores, roles = torch.randn(50).tolist(), np.array(["x", "y"] * 25, dtype=object)
    order = np.random.default_rng(0).permutation(50)
    first, second = {"x": 0.1}, {"x": 0.1}
    plain, _ = rae(*rows(scores), roles, state=first)
    shuffled, _ = rae(*rows([scores[i] for i in order]), roles[order], state=second)
    assert torch.equal(plain[torch.as_tensor(order)], shuffled)
    assert first == second


def test_padding_and_absent_roles_leave_the_baseline(rows) -> None:
    state = {"x": 1.0, "z": 4.0}
    advantages, _ = rae(*rows([9.0], [0]), np.array(["x"], dtype=object), state=state)
    assert state == {"x": 1.0, "z": 4.0}
    assert (advantages == 0).all()


def test_bad_input_is_named(rows) -> None:
    with pytest.raises(ValueError, match=r"algorithm.rae.decay=1.0"):
        rae(*rows([1.0]), np.array(["x"]), decay=1.0)
    with pytest.raises(ValueError, match="agent_index"):
        rae(*rows([1.0]), None)
    state = {"x": 1.0}
    with pytest.raises(ValueError, match="not finite"):
        rae(*rows([float("nan")]), np.array(["x"]), state=state)
    assert state == {"x": 1.0}
