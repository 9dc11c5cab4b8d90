import random

import pytest

from agent_system.workflows.sudoku.world.generate import Kind, generate
from agent_system.workflows.sudoku.world.puzzle import from_text, to_text
from examples.embedded.sudoku.fill import candidates, careful, guessed
from tests.agent_system.workflows.sudoku.conftest import CLUES, SOLUTION

BOARD = from_text(CLUES)  # 1 . 3 . / . 4 . 2 / 2 . 4 . / . 3 . 1


def test_candidates_are_what_row_column_and_box_leave():
    assert candidates(BOARD, 1) == (2,) and candidates(BOARD, 3) == (4,)
    assert candidates(from_text("1" + "." * 15), 15) == (1, 2, 3, 4)
    assert candidates(from_text("1234" + "." * 12), 4) == (3, 4)


def test_care_fills_every_cell_with_one_candidate_and_no_other():
    assert to_text(careful(BOARD)) == SOLUTION
    assert to_text(careful(from_text("123." + "." * 12)))[:8] == "1234...."


def test_care_tries_the_first_empty_cell_where_nothing_is_certain():
    assert to_text(careful(from_text("." * 16))) == "1" + "." * 15
    assert careful(from_text(SOLUTION)) == from_text(SOLUTION)
    stuck = from_text(".123" + "4" + "." * 11)  # the first cell can hold nothing
    assert careful(stuck)[0] == 0


@pytest.mark.parametrize("kind", [Kind(4, "medium"), Kind(4, "hard"), Kind(9, "easy")])
def test_care_solves_generated_puzzles(kind):
    for puzzle in generate(8, 1, kind):
        board = puzzle.clues
        for _ in range(12):
            board = careful(board)
        assert board == puzzle.solution


def test_a_guess_fills_the_first_empty_cells():
    boards = {guessed(random.Random(i), BOARD, 3) for i in range(200)}
    filled = {sum(a != b for a, b in zip(board, BOARD, strict=True)) for board in boards}
    assert filled == {1, 2, 3} and len(boards) > 30
    assert all(a == b for board in boards for a, b in zip(board, BOARD, strict=True) if b)
    full = from_text(SOLUTION)
    assert guessed(random.Random(0), full, 3) == full
