import pytest

from agent_system.workflows.sudoku.deduce import deduce
from agent_system.workflows.sudoku.generate import Kind, generate
from agent_system.workflows.sudoku.puzzle import shape_of


@pytest.mark.parametrize("kind", [Kind(4, "4"), Kind(4, "medium"), Kind(9, "medium")])
def test_every_reason_holds_on_the_board_of_its_moment(kind):
    shape = shape_of(kind.size)
    for puzzle in generate(8, 2, kind):
        board = list(puzzle.clues)
        for step in deduce(puzzle):
            seen = {board[peer] for peer in shape.peers[step.cell]} - {0}
            if step.seen:
                assert set(step.seen) == seen == set(range(1, kind.size + 1)) - {step.digit}
            elif step.certain:
                assert any(
                    all(board[other] or step.digit in {board[peer] for peer in shape.peers[other]} for other in unit if other != step.cell)
                    for unit in shape.units
                    if step.cell in unit
                )
            board[step.cell] = step.digit
        assert tuple(board) == puzzle.solution


def test_the_words_name_place_reason_and_digit():
    puzzle = generate(1, 0)[0]
    step = deduce(puzzle)[0]
    row, column, _, *seen, _, digit = step.words(4).split()
    assert (int(row) - 1) * 4 + int(column) - 1 == step.cell and digit == f"{step.digit}." and tuple(map(int, seen)) == step.seen
