"""RAE: a moving average of the role's scores."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from verl.trainer.ppo.core_algos import compute_rae_outcome_advantage as rae
from verl.trainer.ppo.core_algos.estimators.rae import _warn_of_short_memory as warn_of_short_memory


@pytest.mark.parametrize(
    ("order", "first", "second"),
    # subtract_first: 0 is subtracted, then 3 and 1; update_first: 3 and 1, then 5
    [("subtract_first", [3.0, 5.0, 2.0], 4.0), ("update_first", [0.0, 2.0, 1.0], 2.0)],
)
def test_by_hand(rows, order: str, first: list[float], second: float) -> None:
    # decay 1/2, baselines from 0. x: two rows of mean 4, b = 0/4 + 3/4 * 4 = 3; y: one row, b = 0/2 + 2/2 = 1
    state: dict[str, float] = {}
    rewards, mask = rows([3.0, 5.0, 2.0], [3, 1, 3])
    roles = np.array(["x", "x", "y"], dtype=object)
    advantages, returns = rae(rewards, mask, roles, decay=0.5, order=order, state=state)
    assert state == {"x": 3.0, "y": 1.0}
    x, x2, y = first
    assert advantages.tolist() == [[x] * 3, [x2, 0.0, 0.0], [y] * 3]
    assert advantages is returns
    # the next batch has one row of x: b = 3/2 + 7/2 = 5; y keeps its baseline
    config = SimpleNamespace(rae=SimpleNamespace(decay=0.5, order=order))
    assert rae(*rows([7.0]), np.array(["x"], dtype=object), config=config, state=state)[0][0, 0] == second
    assert json.loads(json.dumps(state)) == {"x": 5.0, "y": 1.0}


@pytest.mark.parametrize(
    ("order", "slope"), [("subtract_first", 1.0), ("update_first", 1 - (1 - 0.5**2) / 2)]
)
def test_a_rows_own_reward_is_in_its_baseline_only_where_it_is_updated_first(
    rows, order: str, slope: float
) -> None:
    low, high = (
        rae(*rows([reward, 2.0]), np.array(["x", "x"]), decay=0.5, order=order, state={"x": 1.0})[0][0, 0]
        for reward in (0.0, 1.0)
    )
    assert float(high - low) == pytest.approx(slope)


def test_the_games_of_a_mixture_do_not_share_baselines(rows) -> None:
    state: dict[str, float] = {}
    roles, games = np.array(["x", "x", "y"], dtype=object), np.array(["chess", "go", "go"], dtype=object)
    rae(*rows([2.0, 6.0, 4.0]), roles, decay=0.5, state=state, data_source=games)
    assert {tuple(json.loads(name)): value for name, value in state.items()} == {
        ("chess", "x"): 1.0,
        ("go", "x"): 3.0,
        ("go", "y"): 2.0,
    }
    advantages, _ = rae(*rows([2.0, 6.0, 4.0]), roles, decay=0.5, state=state, data_source=games)
    assert advantages[:, 0].tolist() == [1.0, 3.0, 2.0]


def test_a_batch_that_forgets_the_past_is_said_once(rows, caplog: pytest.LogCaptureFixture) -> None:
    warn_of_short_memory.cache_clear()  # another test of this process may have had the same batch
    rae(*rows([1.0] * 58), np.array(["x"] * 58), decay=0.951)
    assert caplog.messages == []
    for _ in range(2):
        rae(*rows([1.0] * 64), np.array(["x"] * 64), decay=0.951)
    (message,) = caplog.messages
    assert "algorithm.rae.decay=0.951" in message and "with 60 or more trajectories of a role" in message


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
    with pytest.raises(ValueError, match=r"algorithm.rae.order='last'"):
        rae(*rows([1.0]), np.array(["x"]), order="last")
    with pytest.raises(ValueError, match="agent_index"):
        rae(*rows([1.0]), None)
    state = {"x": 1.0}
    with pytest.raises(ValueError, match="not finite"):
        rae(*rows([float("nan")]), np.array(["x"]), state=state)
    assert state == {"x": 1.0}
