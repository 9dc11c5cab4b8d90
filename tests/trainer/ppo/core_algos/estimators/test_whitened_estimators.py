"""Every estimator that whitens does so within a policy, and by the weights of the rows."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.trainer.ppo.core_algos import reference
from verl.trainer.ppo import core_algos

WIDTH = 3
Columns = dict[str, np.ndarray | None]
Estimate = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, Columns], torch.Tensor]


def _reinforce_plus_plus(
    rewards: torch.Tensor, mask: torch.Tensor, values: torch.Tensor, columns: Columns
) -> torch.Tensor:
    chosen = {name: columns[name] for name in ("policy_index", "weights")}
    return core_algos.compute_reinforce_plus_plus_outcome_advantage(rewards, mask, gamma=0.5, **chosen)[0]


def _baseline(
    rewards: torch.Tensor, mask: torch.Tensor, values: torch.Tensor, columns: Columns
) -> torch.Tensor:
    chosen = {name: columns[name] for name in ("index", "policy_index", "weights")}
    return core_algos.compute_reinforce_plus_plus_baseline_outcome_advantage(rewards, mask, **chosen)[0]


def _gdpo(rewards: torch.Tensor, mask: torch.Tensor, values: torch.Tensor, columns: Columns) -> torch.Tensor:
    chosen = {name: columns[name] for name in ("index", "policy_index", "weights")}
    return core_algos.compute_gdpo_outcome_advantage(rewards, mask, **chosen)[0]


def _gae(level: str) -> Estimate:
    def estimate(
        rewards: torch.Tensor, mask: torch.Tensor, values: torch.Tensor, columns: Columns
    ) -> torch.Tensor:
        chosen = {name: columns[name] for name in ("policy_index", "weights", "traj_uid", "turn_index")}
        return core_algos.compute_gae_advantage_return(
            rewards, values, mask, 0.9, 0.8, level=level, **chosen
        )[0]

    return estimate


WHITENED: dict[str, Estimate] = {
    "reinforce_plus_plus": _reinforce_plus_plus,
    "reinforce_plus_plus_baseline": _baseline,
    "gdpo": _gdpo,
    "gae, token": _gae("token"),
    "gae, turn": _gae("turn"),
}
every_estimator = pytest.mark.parametrize("estimate", WHITENED.values(), ids=WHITENED)
# A row: policy, group within the policy, score, length, weight.
ROWS = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.integers(0, 1),
        st.integers(-16, 16),
        st.integers(1, WIDTH),
        st.sampled_from([0.25, 0.5, 1.0]),
    ),
    min_size=2,
    max_size=14,
)
QUICK = settings(
    max_examples=15,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.generate, Phase.shrink],
)


def make(rows: list[tuple], weighted: bool) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, Columns]:
    """Rewards, mask, values and columns; each row is an episode of its own, so that no chain joins
    policies.
    """
    policy, group, scores, lengths, weights = (np.array(column) for column in zip(*rows, strict=True))
    mask = (torch.arange(WIDTH) < torch.as_tensor(lengths).unsqueeze(1)).long()
    rewards = torch.zeros(len(rows), WIDTH)
    rewards[torch.arange(len(rows)), torch.as_tensor(lengths) - 1] = torch.as_tensor(
        scores, dtype=torch.float32
    )
    values = torch.linspace(-1, 1, WIDTH) * torch.as_tensor(scores * 7 % 5, dtype=torch.float32).unsqueeze(1)
    columns: Columns = {
        "index": 10 * policy + group,
        "policy_index": policy,
        "weights": weights if weighted else None,
    }
    return (
        rewards,
        mask,
        values,
        columns | {"traj_uid": np.arange(len(rows)), "turn_index": np.zeros(len(rows))},
    )


@every_estimator
@QUICK
@given(ROWS, st.booleans())
def test_whitening_never_crosses_policies(estimate: Estimate, rows: list[tuple], weighted: bool) -> None:
    """Each policy's advantages are those that its rows have alone."""
    *tensors, columns = make(rows, weighted)
    whole = estimate(*tensors, columns)
    for policy in {row[0] for row in rows}:
        own = columns["policy_index"] == policy
        mine = {name: None if column is None else column[own] for name, column in columns.items()}
        assert torch.equal(
            whole[torch.as_tensor(own)], estimate(*(x[torch.as_tensor(own)] for x in tensors), mine)
        )


@every_estimator
@pytest.mark.parametrize("other", [1.0, 1000.0])
def test_the_scale_of_one_policy_does_not_reach_another(estimate: Estimate, other: float) -> None:
    rows = [
        (0, 0, 1, 2, 1.0),
        (0, 0, 4, 3, 1.0),
        (0, 1, -2, 1, 1.0),
        (0, 1, 3, 2, 1.0),
        (1, 0, 5, 2, 1.0),
        (1, 0, 9, 3, 1.0),
    ]
    rewards, mask, values, columns = make(rows, weighted=False)
    rewards[4:] *= other
    advantages = estimate(rewards, mask, values, columns)
    alone = estimate(
        rewards[:4], mask[:4], values[:4], {name: None if c is None else c[:4] for name, c in columns.items()}
    )
    assert torch.equal(advantages[:4], alone) and (alone[:, 0] != 0).all()


@every_estimator
def test_weights_by_hand(estimate: Estimate) -> None:
    """Weights 1, 1, 2 on 0, 4, 8, one token each: mean 20 / 4 = 5, variance (25 + 1 + 2 * 9) / (4 - 6 / 4) =
    17.6.

    Values are 0, there is one group, and whitening undoes its mean and deviation: the same numbers for all.
    """
    columns: Columns = {"index": np.zeros(3), "policy_index": None, "weights": np.array([1.0, 1.0, 2.0])}
    columns |= {"traj_uid": np.arange(3), "turn_index": np.zeros(3)}
    advantages = estimate(torch.tensor([[0.0], [4.0], [8.0]]), torch.ones(3, 1), torch.zeros(3, 1), columns)
    assert advantages[:, 0].tolist() == pytest.approx(
        [-5 / 17.6**0.5, -1 / 17.6**0.5, 3 / 17.6**0.5], rel=1e-5
    )


@every_estimator
def test_a_row_of_weight_zero_is_not_there(estimate: Estimate) -> None:
    rows = [(0, 0, 1, 2, 1.0), (0, 0, 4, 3, 0.5), (0, 0, 50, 3, 0.0), (0, 1, -2, 1, 0.25), (0, 1, 3, 2, 1.0)]
    *tensors, columns = make(rows, weighted=True)
    advantages, kept = estimate(*tensors, columns), [0, 1, 3, 4]
    without = estimate(
        *(x[kept] for x in tensors), {name: None if c is None else c[kept] for name, c in columns.items()}
    )
    assert torch.allclose(advantages[kept], without, atol=1e-6) and not advantages[2].any()


@pytest.mark.parametrize("name", ["reinforce_plus_plus_baseline", "gdpo"])
def test_weights_count_in_the_group_and_in_the_whitening(name: str) -> None:
    """Two groups whose weighted means are 3 and 2, on replies of different length, against the loops of the
    reference.
    """
    rows = [(0, 0, 1, 2, 1.0), (0, 0, 5, 3, 1.0), (0, 1, 0, 1, 1.0), (0, 1, 4, 2, 0.5), (0, 1, 4, 1, 0.5)]
    *tensors, columns = make(rows, weighted=True)
    relative, deviations = [-2.0, 2.0, -2.0, 2.0, 2.0], [8.0**0.5] * 2 + [(8 / (2 - 1.5 / 2)) ** 0.5] * 3
    if name == "gdpo":
        relative = [a / (d + 1e-6) for a, d in zip(relative, deviations, strict=True)]
    mask = tensors[1].tolist()
    expected = reference.whiten(reference.spread(relative, mask), mask, columns["weights"])
    torch.testing.assert_close(
        WHITENED[name](*tensors, columns), torch.tensor(expected, dtype=torch.float32), rtol=1e-5, atol=1e-6
    )
