import random
from collections import Counter

import pytest

from agent_system import AgentSystemError
from agent_system.task import task_from_row
from agent_system.workflows.sudoku import SudokuEnv
from agent_system.workflows.sudoku.world.generate import (
    CLUES,
    Kind,
    full_board,
    generate,
    generate_split,
    to_row,
)
from agent_system.workflows.sudoku.world.puzzle import canonical, clashing
from agent_system.workflows.sudoku.world.solver import solutions


def assert_one_solution(puzzle):
    assert solutions(puzzle.clues, limit=3) == [puzzle.solution]
    assert 0 not in puzzle.solution and not clashing(puzzle.solution)
    assert all(clue in (0, digit) for clue, digit in zip(puzzle.clues, puzzle.solution, strict=True))
    assert puzzle.empty == tuple(cell for cell, clue in enumerate(puzzle.clues) if not clue)


def test_200_puzzles_of_4x4_have_exactly_one_solution():
    for difficulty, (least, most) in CLUES[4].items():
        for puzzle in generate(70, 5, Kind(4, difficulty)):
            assert_one_solution(puzzle)
            assert least <= puzzle.num_clues <= most


@pytest.mark.parametrize("difficulty", CLUES[9])
def test_puzzles_of_9x9_have_exactly_one_solution(difficulty):
    least, most = CLUES[9][difficulty]
    for puzzle in generate(4, 6, Kind(9, difficulty)):
        assert_one_solution(puzzle)
        assert least <= puzzle.num_clues <= most


def test_a_number_of_clues_is_a_difficulty():
    assert {puzzle.num_clues for puzzle in generate(20, 0, Kind(4, "6"))} == {6}


def test_training_and_test_share_no_puzzle_not_even_with_other_names_for_digits():
    # There are 192 puzzles of fifteen clues up to names of digits, so that two sets drawn apart would meet.
    train, test = generate_split(120, 60, 0, Kind(4, "15"))
    forms = [canonical(puzzle.clues) for puzzle in train + test]
    assert len(forms) == len(set(forms)) == 180


def test_a_seed_names_the_puzzles():
    assert generate(20, 1) == generate(20, 1)
    assert generate(20, 1) != generate(20, 2)


def test_every_board_of_4x4_comes_up():
    rng = random.Random(0)
    drawn = Counter(full_board(rng, 4) for _ in range(6000))
    assert len(drawn) == 288 and max(drawn.values()) < 80


def test_more_puzzles_than_there_are_is_an_error_that_says_so():
    # Fifteen clues: 12 boards up to names of digits, and 16 places for the gap.
    with pytest.raises(AgentSystemError, match=r"found 192 of 193 .* ask for fewer"):
        generate(193, 0, Kind(4, "15"))


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (Kind(5), "one of 4, 9"),
        (Kind(4, "eazy"), "did you mean 'easy'"),
        (Kind(4, "3"), "4 to 15 clues"),
        (Kind(9, "81"), "24 to 80"),
    ],
)
def test_an_impossible_kind_is_refused(kind, message):
    with pytest.raises(AgentSystemError, match=message):
        generate(1, 0, kind)


def test_a_row_is_a_task_that_the_environment_can_play():
    puzzle = generate(1, 3)[0]
    row = to_row(puzzle, 7, "train")
    assert set(row) == {"data_source", "prompt", "ability", "reward_model", "extra_info"}
    task = task_from_row(row)
    env = SudokuEnv()
    assert env.reset(task).text == task.prompt
    assert env.state.puzzle == puzzle
