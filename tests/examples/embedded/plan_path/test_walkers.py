import random

import pytest

from agent_system.workflows.plan_path.world.generate import generate
from agent_system.workflows.plan_path.world.grid import parse_map
from agent_system.workflows.plan_path.world.rules import advance, initial_state, walk
from examples.embedded.plan_path.walkers import careful_moves, cost, habitual_moves, in_sight, random_moves
from tests.agent_system.workflows.plan_path.conftest import AROUND


@pytest.mark.parametrize(
    ("moves", "radius", "shown"),
    [("RRD", 2, "RR"), ("RRR", 2, "RR"), ("RD", 2, "R"), ("U", 3, "U"), ("", 2, "")],
)
def test_only_cells_straight_ahead_are_in_sight(moves, radius, shown):
    assert in_sight(moves, radius) == shown


def test_cost_counts_entered_cells_and_what_is_left():
    grid = parse_map(AROUND)
    state = initial_state(grid)
    assert cost(grid, state, "") == 2  # two columns to go
    assert cost(grid, state, "D") == 1 + 3 and cost(grid, state, "DD") == 2 + 4
    assert cost(grid, state, "DU") == 1 + 1 + 2 + 2  # the start was entered before
    assert cost(grid, state, "R") is None and cost(grid, state, "DDL") is None
    # what follows the goal is not made
    assert cost(grid, state, "DDRRUU") == 6 == cost(grid, state, "DDRRUUU")


def test_the_careful_walker_leaves_a_dead_end():
    # Straight ahead lies a pocket: R R, then it must go back and around.
    grid = parse_map("....\nS.#G\n....\n.##.")
    state, path = initial_state(grid), ""
    while state.cell != grid.goal and len(path) < 20:
        moves = careful_moves(grid, state, 2, 2)
        path += moves
        state = advance(grid, state, walk(grid, state.cell, moves))
    assert state.cell == grid.goal and len(path) <= 8


def test_the_careful_walker_never_hits_a_wall_nor_walks_out_of_sight():
    for grid in generate(40, 3):
        state = initial_state(grid)
        for _ in range(12):
            moves = careful_moves(grid, state, 2, 3)
            made = walk(grid, state.cell, moves)
            assert moves and not made.illegal and moves == in_sight(moves, 2)
            state = advance(grid, state, made)
            if made.reached:
                assert careful_moves(grid, state, 2, 3) == ""
                break


def test_a_run_ends_at_the_goal():
    grid = parse_map("SG..")
    assert careful_moves(grid, initial_state(grid), 3, 3) == "R"


def test_a_walled_in_walker_makes_no_move():
    grid = parse_map("S.G")
    boxed = type(grid)(1, 3, frozenset({1}), 0, 2, grid.distances)
    assert careful_moves(boxed, initial_state(boxed), 2, 2) == ""


def test_habitual_moves_go_straight_and_random_ones_anywhere():
    grid = parse_map(AROUND)
    assert habitual_moves(random.Random(0), grid, initial_state(grid), 2) == "RR"
    drawn = {random_moves(random.Random(i), 2) for i in range(200)}
    assert len(drawn) == 4 + 16
