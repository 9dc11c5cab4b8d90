"""Which team rewards belong to which call, worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agent_system.reward.scope import step_rewards, team_rewards

from .conftest import call, episode

# Turn 1: Solver (act pays 1), Verifier (act pays 2), Solver (act pays 4); its step pays 8.
# Turn 2: Solver (act pays 16) ends the episode inside the turn: no step.
WITH_ACT = episode(
    [
        call("Solver", 1, 0, act=1.0),
        call("Verifier", 1, 1, act=2.0),
        call("Solver", 1, 2, act=4.0),
        call("Solver", 2, 0, act=16.0),
    ],
    [8.0, 0.0],
)
# The same calls in an environment that pays at the end of turns only.
WITHOUT_ACT = episode(
    [call("Solver", 1, 0), call("Verifier", 1, 1), call("Solver", 1, 2), call("Solver", 2, 0)], [8.0, 32.0]
)


@pytest.mark.parametrize(
    ("scope", "expected"),
    [
        ("episode", [31.0, 31.0, 31.0, 31.0]),
        ("turn", [15.0, 15.0, 15.0, 16.0]),
        ("call", [1.0, 2.0, 4.0 + 8.0, 16.0]),
    ],
)
def test_team_reward_with_act(scope: str, expected: list[float]) -> None:
    assert team_rewards(WITH_ACT, scope) == expected


@pytest.mark.parametrize(
    ("scope", "expected"),
    [("episode", [40.0] * 4), ("turn", [8.0, 8.0, 8.0, 32.0]), ("call", [8.0, 8.0, 8.0, 32.0])],
)
def test_team_reward_without_act(scope: str, expected: list[float]) -> None:
    assert team_rewards(WITHOUT_ACT, scope) == expected


def test_an_act_that_pays_nothing_is_not_an_environment_without_act() -> None:
    silent = episode([call("A", 1, 0, act=0.0), call("B", 1, 1, act=0.0)], [5.0])
    assert team_rewards(silent, "call") == [0.0, 5.0]


def test_the_last_call_of_a_turn_is_the_one_whose_first_generation_is_last() -> None:
    # A asks for a tool (call 0), B is called at the same time (call 1), A answers (call 2). As one sequence A
    # is one sample, call 0.
    rounds = [
        call("A", 1, 0).with_identity(final_call=2),
        call("B", 1, 1, act=0.0),
        call("A", 1, 2, act=0.25),
    ]
    assert team_rewards(episode(rounds, [1.0]), "call") == [0.25, 1.0, 0.25]
    assert team_rewards(episode([rounds[2].with_identity(call=0), rounds[1]], [1.0]), "call") == [0.25, 1.0]


def test_step_reward_goes_to_the_last_call_of_each_agent_before_it() -> None:
    # Solver's first call: its own 1 and Verifier's 2 that followed. Verifier: its 2, Solver's 4, the step's
    # 8, and 16 of turn 2, in which it was silent. Solver's second call: 4 + 8. Its third: 16.
    assert step_rewards(WITH_ACT, 1.0) == [3.0, 30.0, 12.0, 16.0]
    # A step's reward goes to the last call of each agent in that turn.
    assert step_rewards(WITHOUT_ACT, 1.0) == [0.0, 40.0, 8.0, 32.0]


def test_step_reward_counts_no_team_reward_twice_and_adds_the_local_one() -> None:
    both = episode([call("A", 1, 0, local=0.5), call("A", 1, 1, local=0.25), call("A", 2, 0)], [1.0, 2.0])
    assert step_rewards(both, 10.0) == [0.5, 10.25, 20.0]
    assert sum(step_rewards(both, 1.0)) == both.team_reward + 0.75


def test_rewards_before_an_agents_first_call_are_not_credited_to_it() -> None:
    late = episode([call("A", 1, 0, act=1.0), call("B", 1, 1, act=2.0)], [0.0])
    assert step_rewards(late, 1.0) == [3.0, 2.0]


def test_concurrent_calls_share_each_others_rewards() -> None:
    # Turn 1: A, B and again A are asked at once and answer B (act 2), the second A (act 4), the first A (act
    # 1); the step pays 8. Turn 2: B and A at once; A answers first (act 16), then B (act 32).
    calls = [
        call("A", 1, 0, act=1.0),
        call("B", 1, 1, act=2.0),
        call("A", 1, 2, act=4.0),
        call("B", 2, 0, act=32.0),
        call("A", 2, 1, act=16.0),
    ]
    one_by_one = episode(calls, [8.0, 0.0])
    times = [(0, 2), (0, 0), (0, 1), (3, 4), (3, 3)]
    timed = zip(one_by_one.samples, times, strict=True)
    together = replace(
        one_by_one,
        samples=tuple(s.with_identity(prior_replies=prior, order=order) for s, (prior, order) in timed),
    )
    # The first A: its own 1. B: all 1 + 2 + 4 + 8 of the turn. The second A: its 4, B's 2, the step's 8. Turn
    # 2: 48 for both.
    assert step_rewards(together, 1.0) == [1.0, 15.0, 14.0, 48.0, 48.0]
    first = replace(together, samples=tuple(reversed(together.samples)))
    assert step_rewards(first, 1.0) == [48.0, 48.0, 14.0, 15.0, 1.0]


def test_a_summary_in_a_tree_has_the_term_of_the_reply_that_was_committed() -> None:
    replies = [
        replace(
            call("A", 1, 1).with_identity(candidate=i, committed=i == 1), reward_terms={"style": float(i)}
        )
        for i in range(3)
    ]
    tree = episode([call("A", 1, 0).with_identity(summary=True, final_call=1), *replies], [0.0])
    assert [tree.term(s, "style") for s in tree.samples] == [1.0, 0.0, 1.0, 2.0]
