import pytest

from agent_system.workflows.moves import parse_moves
from agent_system.workflows.plan_path.world.grid import parse_map
from agent_system.workflows.plan_path.world.rules import advance, initial_state, walk
from tests.agent_system.workflows.plan_path.conftest import AROUND


@pytest.mark.parametrize(
    "text", ["RRD", "r r d", "R, R, D", '["R", "R", "D"]', "right, right; DOWN", "['R','R','D']"]
)
def test_lists_of_moves_are_read_in_any_usual_form(text):
    assert parse_moves(text) == "RRD"


@pytest.mark.parametrize(
    "text", ["", "[]", "RX", "go right", "R-R", "ＲＲ", "ß", "R" * 2001, None, 7, ["R"], "R\x00"]
)
def test_anything_else_is_not_a_list_of_moves(text):
    assert parse_moves(text) is None


def test_moves_stop_at_the_first_illegal_one():
    grid = parse_map(AROUND)
    made = walk(grid, grid.start, "DRDD")
    assert made.cells == (3,) and made.end == 3 and made.illegal and not made.reached


def test_moves_after_the_goal_are_not_made():
    grid = parse_map("SG.")
    made = walk(grid, grid.start, "RRU")
    assert made.cells == (1,) and made.reached and not made.illegal


def test_best_is_kept_when_the_team_turns_back():
    grid = parse_map(AROUND)
    state = initial_state(grid)
    state = advance(grid, state, walk(grid, state.cell, "DDU"))
    assert (state.cell, state.best, state.moves) == (3, 4, 3)
    assert list(state.visits) == [1, 0, 0, 2, 0, 0, 1, 0, 0]


def test_who_runs_into_a_wall_enters_the_cell_in_front_of_it_once_more():
    grid = parse_map(AROUND)
    state = initial_state(grid)
    for entered in (2, 3):
        state = advance(grid, state, walk(grid, state.cell, "RD"))
        assert (state.cell, state.moves, state.visits[grid.start]) == (grid.start, 0, entered)
    state = advance(grid, state, walk(grid, state.cell, "DR"))
    assert state.cell == 3 and state.visits[3] == 2 and state.moves == 1


def test_visits_stop_at_nine():
    grid = parse_map("S.G")
    state = initial_state(grid)
    for _ in range(300):
        state = advance(grid, state, walk(grid, state.cell, "RL"))
    assert list(state.visits) == [9, 9, 0]
