import random

import pytest

from agent_system import AgentSystemError
from agent_system.workflows.sudoku.world.generate import full_board
from agent_system.workflows.sudoku.world.puzzle import (
    canonical,
    clashing,
    from_text,
    rows_text,
    shape_of,
    to_text,
)


@pytest.mark.parametrize(("size", "peers"), [(4, 7), (9, 20)])
def test_a_cell_sees_its_row_column_and_box(size, peers):
    shape = shape_of(size)
    assert len(shape.units) == 3 * size and all(len(unit) == size for unit in shape.units)
    assert {len(of) for of in shape.peers} == {peers}
    assert (0 in shape.peers[size + 1]) and (0 not in shape.peers[0])


def test_text_and_board_say_the_same():
    text = "1.3..4.22.4..3.1"
    assert to_text(from_text(text)) == text and from_text(text.replace(".", "0")) == from_text(text)
    assert rows_text(from_text(text)).splitlines() == ["1 . 3 .", ". 4 . 2", "2 . 4 .", ". 3 . 1"]


@pytest.mark.parametrize(
    "text", ["", "1234", "5...............", "x...............", "1" * 25, "٣..............."]
)
def test_invalid_boards_are_rejected(text):
    with pytest.raises(AgentSystemError, match="16 cells"):
        from_text(text)


def test_both_cells_of_a_clash_are_named():
    assert clashing(from_text("1..1............")) == {0, 3}
    assert clashing(from_text("1....1..........")) == {0, 5}
    assert clashing(from_text("1......1........")) == set()


def test_canonical_form_forgets_names_of_digits_and_nothing_else():
    rng = random.Random(0)
    for size in (4, 9):
        board = tuple(digit if rng.random() < 0.5 else 0 for digit in full_board(rng, size))
        names = [0, *rng.sample(range(1, size + 1), size)]
        assert canonical(tuple(names[digit] for digit in board)) == canonical(board)
        hidden = next(cell for cell, digit in enumerate(board) if digit)
        assert canonical((*board[:hidden], 0, *board[hidden + 1 :])) != canonical(board)
