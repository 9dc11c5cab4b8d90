import pytest

from agent_system.workflows.sudoku.world.action import parse_action
from agent_system.workflows.sudoku.world.puzzle import to_text
from agent_system.workflows.sudoku.world.solver import puzzle_from_text
from agent_system.workflows.sudoku.world.state import AppliedAction, SudokuState, apply_action

CLUES, SOLUTION = "1.3..4.22.4..3.1", "1234341221434321"


def applied(text: str, max_cells: int = 81, state: SudokuState | None = None) -> AppliedAction:
    return apply_action(state or SudokuState.start(puzzle_from_text(CLUES)), parse_action(text, 4), max_cells)


def grid(text: str) -> str:
    return "/".join(text[i : i + 4] for i in range(0, 16, 4))


@pytest.mark.parametrize("clue", ["1 1 1", "1 1 2", "1 1 0"])
def test_a_clue_stops_the_action_even_with_its_own_digit_and_earlier_cells_stay_written(clue):
    result = applied(f"1 2 2; {clue}; 1 4 4")
    assert result.illegal and result.touched_clue and result.written == 1
    assert to_text(result.state.board) == "123..4.22.4..3.1"


@pytest.mark.parametrize("cell", ["0 1 1", "5 1 1", "1 5 1", "1 2 5", "99 99 99"])
def test_a_place_outside_the_board_stops_the_action(cell):
    result = applied(f"{cell}; 1 4 4")
    assert (
        result.illegal
        and not result.touched_clue
        and result.written == 0
        and to_text(result.state.board) == CLUES
    )


def test_a_grid_has_to_repeat_the_clues():
    assert applied(grid(SOLUTION)).state.solved
    for digit in "2.":
        result = applied(grid(digit + SOLUTION[1:]))
        assert result.touched_clue and to_text(result.state.board) == CLUES


def test_written_cells_may_be_written_again_and_emptied():
    wrong = applied("1 2 4").state
    assert applied("1 2 2", state=wrong).state.num_right == 1
    assert applied("1 2 0", state=wrong).state == SudokuState.start(wrong.puzzle)


def test_the_action_ends_where_the_puzzle_is_solved():
    cells = "; ".join(f"{i // 4 + 1} {i % 4 + 1} {SOLUTION[i]}" for i in range(16) if CLUES[i] == ".")
    result = applied(cells + "; 1 2 4; 1 1 1")
    assert result.state.solved and not result.illegal and result.written == 8


def test_moves_beyond_the_most_are_left_out_and_counted():
    result = applied("1 2 2; 1 4 4; 2 1 3", max_cells=2)
    assert (result.written, result.cut, result.illegal) == (2, 1, False)
    assert applied(grid(SOLUTION), max_cells=3).cut == 5


def test_clashes_are_counted_on_the_board_as_it_is_afterwards():
    assert applied("1 2 1; 4 1 4").clash_share == 0.5
    assert applied("1 2 1; 1 2 2").clashes == 0


def test_keys_tell_states_apart_and_nothing_else():
    assert (
        applied("1 2 2; 1 4 4").state.key == applied("1 4 4; 1 2 2").state.key != applied("1 2 2").state.key
    )


def test_a_digit_that_clashes_is_written_or_refused_and_costs_both_ways():
    puzzle = puzzle_from_text(CLUES)
    kept, refused = (
        apply_action(SudokuState.start(puzzle), parse_action("1 2 1; 1 2 2", 4), 81, clashes)
        for clashes in ("keep", "refuse")
    )
    assert refused.state == kept.state and (refused.refused, refused.written, refused.clashes) == (1, 1, 0)
    clash = apply_action(SudokuState.start(puzzle), parse_action("1 2 1", 4), 81, "refuse")
    assert clash.state == SudokuState.start(puzzle) and (clash.clash_share, clash.wrong_share) == (1.0, 1.0)
    emptied = apply_action(kept.state, parse_action("1 2 0", 4), 81, "refuse")
    assert emptied.state == SudokuState.start(puzzle) and emptied.clash_share == 0.0


def test_a_digit_that_clashes_empties_what_is_in_its_way_but_no_clue():
    """A wrong digit that was written stays in the way of right ones until one of them meets it."""
    puzzle = puzzle_from_text(CLUES)
    wrong = apply_action(
        SudokuState.start(puzzle), parse_action("1 2 4", 4), 81, "keep"
    ).state  # the solution has 2 there
    stuck = apply_action(wrong, parse_action("1 4 4", 4), 81, "refuse")
    assert stuck.state is wrong and stuck.refused == 1
    cleared = apply_action(wrong, parse_action("1 4 4", 4), 81, "clear")
    assert cleared.state.board == puzzle.clues and (cleared.refused, cleared.written, cleared.wrong) == (
        1,
        0,
        0,
    )
    assert apply_action(cleared.state, parse_action("1 2 2; 1 4 4", 4), 81, "clear").state.num_right == 2
    clue = apply_action(SudokuState.start(puzzle), parse_action("1 2 1", 4), 81, "clear")
    assert clue.state.board == puzzle.clues and (clue.refused, clue.wrong) == (1, 1)
