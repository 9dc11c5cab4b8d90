import math
import random

import pytest

from agent_system.workflows.plan_path import EXECUTOR, TOOL
from agent_system.workflows.plan_path.world.generate import generate
from agent_system.workflows.plan_path.world.grid import MOVES


def total(env, moves):
    """(team, local) of one turn in which the Tool proposes what the Executor does."""
    proposed, made = env.act(TOOL, moves), env.act(EXECUTOR, moves)
    ended = env.step(moves)
    return proposed.team + made.team + ended.team, proposed.local + made.local


def test_best_way_earns_success_and_progress_and_no_penalty(start):
    env = start()
    # 6 moves to go: 4 in the first turn, 4/6 of the progress.
    assert total(env, "DDRR") == (pytest.approx(0.5 * 4 / 6), 0.0)
    assert total(env, "UU") == (pytest.approx(0.5 * 2 / 6 + 1.0), 0.0)


@pytest.mark.parametrize("circle", ["DU", "DDUU", "DRUL"])
def test_walking_in_circles_earns_nothing(start, circle):
    env = start("S...\n....\n....\n...G")
    first = total(env, circle)
    later = [total(env, circle) for _ in range(20)]
    assert first[0] <= 0.5 * 2 / 6 + 1e-9  # the progress of the first round alone
    assert all(team == 0.0 and local <= 0.0 for team, local in later)
    assert env.state.cell == env.grid.start


def test_going_back_and_forth_is_paid_once(start):
    env = start()
    earned = [total(env, moves)[0] for moves in ("DD", "UU", "DD", "UU", "DD")]
    assert earned == [pytest.approx(0.5 * 2 / 6), 0.0, 0.0, 0.0, 0.0]


def test_no_walk_earns_more_than_the_shortest_one(start):
    rng = random.Random(0)
    for grid in generate(20, 5):
        env = start(grid.text)
        team = 0.0
        for _ in range(200):
            earned, local = total(env, "".join(rng.choices(tuple(MOVES), k=4)))
            team += earned
            assert local <= 0.0
            if env.state.cell == grid.goal:
                break
        arrived = env.state.cell == grid.goal
        assert team == pytest.approx(0.5 * (1 - env.state.best / grid.shortest) + 1.0 * arrived)


def test_local_reward_tells_proposals_apart(start):
    env = start()
    best, none, illegal, back = (env.act(TOOL, moves).local for moves in ("DDRR", "no moves", "DR", "DU"))
    # DR: one of four possible moves gained, then the wall: 0.1 + 0.2 * 3/8. DU: nothing gained: 0.2 * 1/2.
    assert (best, none, illegal, back) == (
        0.0,
        pytest.approx(-0.5),
        pytest.approx(-0.175),
        pytest.approx(-0.1),
    )


def test_rewards_are_finite_for_any_reply(start):
    env = start()
    for action in ("", "U" * 5000, "\x00", "DDRRUU" * 3, "🧭"):
        assert all(math.isfinite(number) for number in total(env, action))


def test_a_role_that_is_paid_nothing_for_itself_is_given_no_local_reward(start):
    free = {"illegal_penalty": 0.0, "format_penalty": 0.0, "shortfall_penalty": 0.0}
    assert all(
        start(**free).act(agent, action).local is None
        for agent in (TOOL, EXECUTOR)
        for action in ("", "DDRR")
    )
    assert start(**free).step("DDRR").local is None
    assert start(**free | {"illegal_penalty": 0.1}).act(TOOL, "DDRR").local == 0.0
