import random

import pytest

from agent_system.workflows.sudoku.action import cells_text, parse_action
from agent_system.workflows.sudoku.generate import Kind, generate
from agent_system.workflows.sudoku.pencil import candidates, careful_cells, contradicts, guessed_cells, marks_text
from agent_system.workflows.sudoku.render import replay
from agent_system.workflows.sudoku.solver import puzzle_from_text
from agent_system.workflows.sudoku.state import State, apply_action
from tests.agent_system.workflows.sudoku.conftest import CLUES, SOLUTION


def after(*actions: str) -> State:
    return replay(puzzle_from_text(CLUES), actions)[-1]


def test_candidates_are_what_row_column_and_box_leave():
    # 1 . 3 . / . 4 . 2 / 2 . 4 . / . 3 . 1
    assert candidates(after(), 1) == (2,) and candidates(after(), 3) == (4,)
    assert candidates(after("1 2 2"), 1) == (2,)  # the cell's own digit is no peer


def test_marks_show_every_empty_cell_and_what_is_written():
    assert marks_text(after()).splitlines() == ["1 2: 2", "1 4: 4", "2 1: 3", "2 3: 1", "3 2: 1", "3 4: 3", "4 1: 4", "4 3: 2"]
    lines = marks_text(after("1 2 2; 1 4 1")).splitlines()
    assert lines[-1] == "Has: 1 2 2; 1 4 1!"
    assert "3 4: 3" in lines and "1 2: 2" not in lines
    assert "2 3: no" in marks_text(after("2 1 1")).splitlines()  # 1 stands beside it, 3 above it, 4 and 2 in its row


def test_a_contradiction_is_a_clash_or_a_cell_without_candidates():
    assert not contradicts(after()) and not contradicts(after("1 2 2"))
    assert contradicts(after("1 4 1")) and contradicts(after("2 1 1"))


def test_care_writes_single_candidates_and_empties_a_wrong_board():
    assert careful_cells(after())[:2] == [(1, 2), (3, 4)]
    assert careful_cells(after("1 2 2; 1 4 1")) == [(1, 0), (3, 0)]


@pytest.mark.parametrize("kind", [Kind(4, "medium"), Kind(4, "hard"), Kind(9, "easy")])
def test_care_solves_generated_puzzles_even_after_guesses(kind):
    rng = random.Random(0)
    for puzzle in generate(8, 1, kind):
        state = State.start(puzzle)
        for turn in range(40):
            cells = guessed_cells(rng, state, 3) if turn < 2 else careful_cells(state)
            state = apply_action(state, parse_action(cells_text(cells, kind.size), kind.size), 81).state
            if state.solved:
                break
        assert state.solved


def test_a_full_wrong_board_can_be_guessed_about():
    full = after("; ".join(f"{i // 4 + 1} {i % 4 + 1} {SOLUTION[i]}" for i in range(16) if CLUES[i] == "." and i != 1) + "; 1 2 4")
    (cell, digit), *more = guessed_cells(random.Random(0), full, 3)
    assert not more and CLUES[cell] == "." and 1 <= digit <= 4
