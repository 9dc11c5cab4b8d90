"""How a team reward travels back along the calls, by hand and by its laws."""

from __future__ import annotations

import logging
import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_system import AgentSystemError
from agent_system.record import EpisodeRecord
from agent_system.reward import assign_rewards
from verl.trainer.config.reward import PropagationConfig, RewardConfig

from .conftest import call, chain, episode

PREFIX = "reward/propagation/"


def credit(
    records: list[EpisodeRecord], alpha: float = 1.0, **options: object
) -> tuple[list[list[float]], dict[str, float]]:
    """Team rewards of the samples of each episode, and the metrics."""
    rewarded, metrics = assign_rewards(
        records, RewardConfig(alpha=alpha, propagation=PropagationConfig(**options))
    )  # type: ignore[arg-type]
    return [[s.rewards.team_reward for s in r.samples] for r in rewarded], metrics


def test_uniform_gives_every_call_the_team_reward() -> None:
    assert credit([chain([0.1, 0.9], 3.0)], mode="uniform") == ([[3.0, 3.0]], {})


def test_discounted_by_hand() -> None:
    # m = 3: gamma^2 R, gamma R, R
    assert credit([chain([0.0, 0.0, 0.0], 8.0), chain([0.0], 2.0)], mode="discounted", gamma=0.5)[0] == [
        [2.0, 4.0, 8.0],
        [2.0],
    ]


def test_threshold_by_hand() -> None:
    # First: call 3 passes (0.6), call 2 does not (0.4): calls 2, 3, 4 keep R, call 1 is cut off. Its own 0.0
    # is no link. Second: the last call fails, so all before it get nothing.
    team, metrics = credit(
        [chain([0.0, 0.4, 0.6, 0.5], 2.0), chain([1.0, 1.0, 0.1], 5.0)],
        mode="threshold",
        theta=0.5,
        min_pass_rate=0.0,
    )
    assert team == [[0.0, 2.0, 2.0, 2.0], [0.0, 0.0, 5.0]]
    # Links: 0.4 no, 0.6 yes, 0.5 yes; 1.0 yes, 0.1 no.
    assert metrics == {
        PREFIX + "pass_rate": pytest.approx(3 / 5),
        PREFIX + "theta": 0.5,
        PREFIX + "fallback": 0.0,
    }


def test_threshold_agrees_with_its_recursion() -> None:
    draw = random.Random(0)
    records = [
        chain([draw.random() for _ in range(draw.randint(1, 6))], draw.random(), str(i)) for i in range(30)
    ]
    team, _ = credit(records, mode="threshold", theta=0.4, min_pass_rate=0.0)
    for record, got in zip(records, team, strict=True):
        b = record.team_reward
        expected = [b]
        for sample in reversed(record.samples[1:]):
            b = b if sample.rewards.local_reward >= 0.4 else 0.0
            expected.insert(0, b)
        assert got == expected


def test_the_generations_of_a_call_are_one_link() -> None:
    # A's call is generations 0 and 2, B's is 1: A's low local reward is no link, and B passes.
    rounds = [
        call("A", 1, 0, local=0.2),
        call("B", 1, 1, local=0.6),
        call("A", 1, 2, local=0.2),
        call("C", 1, 3, local=0.1),
    ]
    rounds[0] = rounds[0].with_identity(final_call=2)
    for last, team, pass_rate in ((3, [1.0, 1.0, 1.0], 1.0), (4, [0.0, 0.0, 0.0, 1.0], 0.5)):
        found, metrics = credit(
            [episode(rounds[:last], [1.0])], mode="threshold", theta=0.5, min_pass_rate=0.0
        )
        assert (found, metrics[PREFIX + "pass_rate"]) == ([team], pass_rate)
    assert credit([episode(rounds, [8.0])], mode="discounted", gamma=0.5)[0] == [[2.0, 4.0, 2.0, 8.0]]
    _, metrics = credit([episode(rounds, [1.0])], mode="threshold", theta_quantile=0.5)
    assert metrics[PREFIX + "theta"] == 0.2, "of 0.2, 0.6 and 0.1"


def test_the_reward_of_a_call_is_its_scaled_local_reward_and_alpha_times_what_it_is_credited_with() -> None:
    options = PropagationConfig(mode="discounted", gamma=0.5, local_range=(-1.0, 3.0))
    (record,), _ = assign_rewards(
        [chain([-1.0, 1.0, 3.0], 4.0)], RewardConfig(alpha=10.0, propagation=options)
    )
    assert [s.rewards.reward for s in record.samples] == [0.0 + 10.0, 0.5 + 20.0, 1.0 + 40.0]
    assert [s.rewards.local_reward for s in record.samples] == [-1.0, 1.0, 3.0]


@pytest.mark.parametrize(("locals_", "team", "pass_rate"), [
    ([None, 1.0, None], [1.0, 1.0, 1.0], 1.0), ([None, 0.0, None], [0.0, 1.0, 1.0], 0.5),
    ([None, None], [1.0, 1.0], 1.0),
    ([None, 0.0, None, 0.9], [0.0, 1.0, 1.0, 1.0], 2 / 3),
])  # fmt: skip
def test_only_a_local_reward_that_was_given_can_cut(
    locals_: list[float | None], team: list[float], pass_rate: float
) -> None:
    found, metrics = credit([chain(locals_, 1.0)], mode="threshold", theta=0.5, min_pass_rate=0.0)
    assert (found, metrics[PREFIX + "pass_rate"]) == ([team], pytest.approx(pass_rate))


def test_a_call_without_a_local_reward_is_in_no_quantile_and_counts_as_zero_within_the_range() -> None:
    _, metrics = credit([chain([None, 0.25, None, 0.75], 1.0)], mode="threshold", theta_quantile=0.5)
    assert metrics[PREFIX + "theta"] == 0.5
    assert (
        credit([chain([None, None], 1.0)], mode="threshold", theta=0.3, theta_quantile=0.5)[1][
            PREFIX + "theta"
        ]
        == 0.3
    )
    for local_range, share in (((-1.0, 3.0), 0.25), ((1.0, 3.0), 0.0), ((-3.0, -1.0), 1.0)):
        options = PropagationConfig(mode="uniform", local_range=local_range)
        (record,), _ = assign_rewards([chain([None], 4.0)], RewardConfig(propagation=options))
        assert record.samples[0].rewards.reward == 4.0 + share, local_range


@pytest.mark.parametrize(("bad", "fallback"), [(1, 0.0), (2, 0.0), (3, 1.0)])
def test_a_step_falls_back_below_eighty_percent_of_the_links_by_default(
    bad: int, fallback: float, caplog: pytest.LogCaptureFixture
) -> None:
    records = [chain([0.0, 0.0 if i < bad else 1.0], 1.0, str(i)) for i in range(10)]
    _, metrics = credit(records, mode="threshold", theta=0.5)
    assert metrics[PREFIX + "fallback"] == fallback == len(caplog.records)


def test_theta_may_follow_a_quantile_of_the_batch() -> None:
    # The median of 0, 0.2, 0.4, 0.6, 1 is 0.4: of the links 0.2, 0.4 and 1.0, one does not pass.
    team, metrics = credit(
        [chain([0.0, 0.2], 1.0), chain([0.6, 0.4, 1.0], 1.0)],
        mode="threshold",
        theta_quantile=0.5,
        min_pass_rate=0.0,
    )
    assert metrics[PREFIX + "theta"] == pytest.approx(0.4)
    assert metrics[PREFIX + "pass_rate"] == pytest.approx(2 / 3)
    assert team == [[0.0, 1.0], [1.0, 1.0, 1.0]]


def test_too_few_links_that_pass_fall_back_to_uniform_and_say_so_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    records = [chain([0.0, 0.0], 1.0, str(i)) for i in range(5)] + [chain([0.0, 1.0], 1.0)]
    with caplog.at_level(logging.WARNING):
        team, metrics = credit(records, mode="threshold", theta=0.5, min_pass_rate=0.5)
    assert team == [[1.0, 1.0]] * 6
    assert (metrics[PREFIX + "fallback"], metrics[PREFIX + "pass_rate"]) == (1.0, pytest.approx(1 / 6))
    assert len(caplog.records) == 1
    assert "reward.propagation.min_pass_rate=0.5" in caplog.text


def test_episodes_of_one_call_have_no_link_to_cut() -> None:
    team, metrics = credit([chain([0.0], 1.0)], mode="threshold", theta=1.0, min_pass_rate=1.0)
    assert team == [[1.0]]
    assert (metrics[PREFIX + "pass_rate"], metrics[PREFIX + "fallback"]) == (1.0, 0.0)


@pytest.mark.parametrize("mode", ["uniform", "discounted", "threshold"])
def test_a_local_reward_out_of_range_names_the_agent_and_the_value(mode: str) -> None:
    with pytest.raises(
        AgentSystemError,
        match=r"local_range=\[0, 1\], but a call of A1 got the local reward 1\.5 \(1 of 2 local rewards",
    ):
        credit([chain([0.5, 1.5], 1.0)], mode=mode)


def test_local_rewards_of_any_size_are_fine_without_propagation() -> None:
    assert credit([chain([-7.0, 1.5], 1.0)], mode="none") == ([[1.0, 1.0]], {})


episodes = st.lists(
    st.builds(
        chain, st.lists(st.floats(0, 1, width=16), min_size=1, max_size=4), st.floats(-4, 4, width=16),
        st.uuids().map(str)
    ),
    min_size=1,
    max_size=6,
)  # fmt: skip


@settings(max_examples=30, deadline=None)
@given(episodes)
def test_nothing_to_cut_and_nothing_to_discount_equal_uniform(records: list[EpisodeRecord]) -> None:
    uniform, _ = credit(records, mode="uniform")
    assert credit(records, mode="threshold", theta=0.0)[0] == uniform
    assert credit(records, mode="discounted", gamma=1.0)[0] == uniform


@settings(max_examples=30, deadline=None)
@given(episodes, st.randoms(use_true_random=False), st.sampled_from([None, 0.3]))
def test_the_order_of_episodes_does_not_matter(
    records: list[EpisodeRecord], random_order: random.Random, quantile: float | None
) -> None:
    reward_settings = RewardConfig(
        alpha=0.5,
        shaping="hop_discount",
        propagation=PropagationConfig(
            mode="threshold", theta=0.5, theta_quantile=quantile, min_pass_rate=0.4
        ),
    )
    shuffled = random_order.sample(records, len(records))
    straight, metrics = assign_rewards(records, reward_settings)
    mixed, same = assign_rewards(shuffled, reward_settings)
    assert {r.traj_uid: r for r in straight} == {r.traj_uid: r for r in mixed}
    assert metrics == same
    assert all(math.isfinite(v) for v in metrics.values())
