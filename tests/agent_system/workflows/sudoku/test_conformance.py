import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_system import Task
from agent_system.task import task_from_row
from agent_system.testing import check_env
from agent_system.workflows.sudoku import EXECUTOR, TOOL, SudokuEnv
from agent_system.workflows.sudoku.world.action import cells_text
from agent_system.workflows.sudoku.world.generate import Kind, generate, to_row
from tests.agent_system.workflows.plays import ends, plays

KINDS = {4: Kind(4, "medium"), 9: Kind(9, "easy")}
PUZZLES = {size: generate(3, 0, kind) for size, kind in KINDS.items()}
RANGES = {"team_range": (0.0, 1.5), "local_range": (-0.7, 0.5)}


class Own(SudokuEnv):
    """A user's own kind: its forks are of the same kind."""


def task_of(size: int, number: int) -> Task:
    return task_from_row(to_row(PUZZLES[size][number], 0, "test"))


def check(size: int, play: list, number: int = 0) -> None:
    check_env(lambda seed: Own(seed=seed), task_of(size, number), play, **RANGES)


@pytest.mark.parametrize("size", [4, 9])
def test_a_whole_episode_from_mistakes_to_the_solution_conforms(size):
    puzzle = PUZZLES[size][0]
    clue = next(cell for cell, digit in enumerate(puzzle.clues) if digit)
    wrong, right = (
        puzzle.solution[puzzle.empty[0]] % size + 1,
        [(cell, puzzle.solution[cell]) for cell in puzzle.empty],
    )
    mistakes = [
        cells_text([(puzzle.empty[0], wrong)], size),
        cells_text([(clue, wrong)], size),
        "what?",
        f"{size + 1} 1 1",
    ]
    solved, half = cells_text(right, size), cells_text(right[: len(right) // 2], size)
    wrongly = [play for text in mistakes for play in ((TOOL, text), (EXECUTOR, text), text)]
    play = [*wrongly, (TOOL, half), (EXECUTOR, half), half, (TOOL, solved), (EXECUTOR, solved)]
    assert ends(SudokuEnv(), task_of(size, 0), play)
    check(size, play)


@pytest.mark.parametrize("size", [4, 9])
@given(data=st.data(), number=st.integers(0, 2))
@settings(max_examples=15, deadline=None)
def test_any_play_on_any_puzzle_conforms(size, data, number):
    cell = st.tuples(st.integers(0, size * size - 1), st.integers(0, size))
    actions = st.lists(cell, min_size=1, max_size=4).map(lambda cells: cells_text(cells, size))
    check(size, data.draw(plays([TOOL, EXECUTOR], actions)), number)
