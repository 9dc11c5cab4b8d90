from itertools import product

import pytest

from agent_system import AgentSystemError
from agent_system.workflows.sudoku.world.puzzle import clashing, from_text
from agent_system.workflows.sudoku.world.solver import (
    has_one_solution,
    make_puzzle,
    puzzle_from_text,
    solutions,
)

# A puzzle of 17 clues, the fewest a 9x9 puzzle with one solution can have.
SEVENTEEN = "000000010400000000020000000000050407008000300001090000300400200050100000000806000"


def test_all_288_boards_of_4x4_are_found():
    assert len(set(solutions((0,) * 16, limit=1000))) == 288


def test_solutions_are_those_of_trying_everything():
    board = from_text("1.....3..4...2..")[:8] + from_text("2143432112343412")[8:]
    empty = [cell for cell, digit in enumerate(board) if not digit]
    tried = []
    for digits in product(range(1, 5), repeat=len(empty)):
        filled = list(board)
        for cell, digit in zip(empty, digits, strict=True):
            filled[cell] = digit
        if not clashing(tuple(filled)):
            tried.append(tuple(filled))
    assert set(solutions(board, limit=1000)) == set(tried)


def test_a_hard_puzzle_has_its_one_solution():
    puzzle = puzzle_from_text(SEVENTEEN)
    assert not clashing(puzzle.solution) and 0 not in puzzle.solution
    assert all(clue in (0, digit) for clue, digit in zip(puzzle.clues, puzzle.solution, strict=True))
    assert puzzle.num_clues == 17


def test_a_missing_clue_that_lets_a_second_solution_in_is_noticed():
    clues = from_text(SEVENTEEN)
    first = next(cell for cell, digit in enumerate(clues) if digit)
    assert not has_one_solution((*clues[:first], 0, *clues[first + 1 :]))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("11..............", "no solution"),
        ("123....4........", "no solution"),
        ("." * 16, "several solutions"),
    ],
)
def test_a_puzzle_without_exactly_one_solution_is_refused(text, found):
    with pytest.raises(AgentSystemError, match=found):
        make_puzzle(from_text(text))
