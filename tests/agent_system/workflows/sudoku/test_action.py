import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_system.workflows.sudoku.world.action import (
    MAX_ACTION_CHARS,
    Action,
    Move,
    cells_text,
    parse_action,
)
from tests.cpu_time import cpu_seconds

CELLS = Action((Move(1, 2, 3), Move(4, 1, 2)))
GRID = "1 2 3 4\n3 4 1 2\n2 1 4 3\n4 3 2 1"


@pytest.mark.parametrize(
    "text",
    [
        "1 2 3; 4 1 2",
        "1,2,3\n4,1,2",
        "[[1, 2, 3], [4, 1, 2]]",
        "(1,2,3), (4,1,2)",
        "[1 2 3] [4 1 2]",
        " 1 2 3 ;; 4 1 2; ",
    ],
)
def test_cells_are_read_with_and_without_brackets(text):
    assert parse_action(text, 4) == CELLS


@pytest.mark.parametrize(
    "text",
    [
        GRID,
        GRID.replace(" ", ""),
        GRID.replace("\n", "/"),
        "[[1,2,3,4],[3,4,1,2],[2,1,4,3],[4,3,2,1]]",
        "|" + GRID.replace("\n", "|\n|"),
    ],
)
def test_grids_are_read_in_every_form(text):
    action = parse_action(text, 4)
    assert action is not None and action.whole and len(action.moves) == 16
    assert action.moves[4] == Move(2, 1, 3)


def test_a_dot_or_zero_leaves_a_cell_of_a_grid_empty():
    action = parse_action("1..4\n0 4 1 .\n2143\n4321", 4)
    assert action is not None and [move.digit for move in action.moves[:8]] == [1, 0, 0, 4, 0, 4, 1, 0]


def test_three_numbers_are_a_cell_on_a_big_board_too():
    assert parse_action("9 9 9", 9) == Action((Move(9, 9, 9),))


@pytest.mark.parametrize(
    "text",
    [
        "", " ", "no", "1 2", "1 2 3 4", "1 2 3; 4 1", "[[1,2,3],[4,1,2]", "[1,2,3] and [4,1,2]", "1.5 2 3",
        "-1 2 3", "100 2 3",
        "__import__('os')", "[]", "[[]]", "[" * 3000, "9" * 3000, "1 2 3;" * MAX_ACTION_CHARS, "１ ２ ３",
        "1 2 3\x00", GRID + "\n1 2 3 4",
    ],
)  # fmt: skip
def test_what_is_neither_is_not_guessed(text):
    assert parse_action(text, 4) is None


@settings(max_examples=100, deadline=None)
@given(st.text(alphabet="0123456789 .,;/[]()|\n-x", max_size=60))
def test_any_text_is_read_or_refused(text):
    action = parse_action(text, 4)
    assert action is None or action.moves


@pytest.mark.timing
def test_long_hostile_text_takes_no_time():
    start = cpu_seconds()
    for text in (
        "[" * MAX_ACTION_CHARS,
        "(1" * (MAX_ACTION_CHARS // 2),
        "1 " * (MAX_ACTION_CHARS // 2),
        "[(" * 2000,
    ):
        parse_action(text, 9)
    assert cpu_seconds() - start < 0.5


def test_written_cells_are_read_back():
    assert parse_action(cells_text([(1, 3), (12, 2)], 4), 4) == CELLS
