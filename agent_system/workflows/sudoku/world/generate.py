"""Puzzles generated from a seed: a random full board, cells emptied in random order while the
solution stays unique.

Training and test puzzles of `generate_split` differ also up to a renaming of digits. Rows follow
verl's schema.
"""

from __future__ import annotations

import random
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from agent_system.errors import AgentSystemError
from agent_system.workflows.data import TaskSet, draw_distinct
from agent_system.workflows.sudoku.world.puzzle import (
    Board,
    SudokuPuzzle,
    canonical,
    rows_text,
    shape_of,
    to_text,
)
from agent_system.workflows.sudoku.world.solver import has_one_solution, solutions
from verl.utils.names import did_you_mean

DATA_SOURCE = "verl_mas/sudoku"
# Consecutive draws without a new puzzle after which the difficulty counts as exhausted.
MOST_MISSES = 2000
# Fewest and most clues, by size and difficulty. A unique solution needs at least 4 clues (4x4) or
# 17 clues (9x9).
CLUES: dict[int, dict[str, tuple[int, int]]] = {
    4: {"easy": (9, 11), "medium": (7, 8), "hard": (5, 6)},
    9: {"easy": (40, 45), "medium": (32, 36), "hard": (26, 29)},
}


def clue_range(size: int, difficulty: str) -> tuple[int, int]:
    """Return the fewest and the most clues of a difficulty: a name of `CLUES`, or a number such as
    `8`.

    Raises:
        AgentSystemError: an unknown size or difficulty, or a number of clues out of range.
    """
    if size not in CLUES:
        raise AgentSystemError(
            f"the size of a puzzle must be one of {', '.join(map(str, CLUES))}, found {size}"
        )
    if difficulty.isascii() and difficulty.isdigit():
        clues = int(difficulty)
        least = {4: 4, 9: 24}[size]
        most = size * size - 1
        if not least <= clues <= most:
            raise AgentSystemError(
                f"a puzzle of size {size} is made with {least} to {most} clues, found {clues}"
            )
        return clues, clues
    clue_ranges = CLUES[size]
    if difficulty not in clue_ranges:
        raise AgentSystemError(
            f"the difficulty of a puzzle must be one of {', '.join(clue_ranges)} or a number of "
            f"clues, found {difficulty!r}{did_you_mean(difficulty, clue_ranges)}"
        )
    return clue_ranges[difficulty]


@dataclass(frozen=True)
class Kind:
    """Size and difficulty of generated puzzles.

    Attributes:
        size: rows of the board, 4 or 9.
        difficulty: a name of `CLUES[size]`, or a number of clues such as `8`.
    """

    size: int = 4
    difficulty: str = "medium"


def full_board(rng: random.Random, size: int) -> Board:
    """Draw a full board: the boxes on the diagonal, which are independent, at random, and one of
    the completions of the rest.

    Every 4x4 board can be drawn; for a 9x9 board the draw is among the first 16 completions found.
    """
    shape = shape_of(size)
    side = round(size**0.5)
    while True:
        board = [0] * (size * size)
        for box in shape.units[2 * size :: side + 1]:
            for cell, digit in zip(box, rng.sample(range(1, size + 1), size), strict=True):
                board[cell] = digit
        completions = solutions(tuple(board), limit=16)
        if completions:
            return rng.choice(completions)


def draw_puzzle(rng: random.Random, kind: Kind) -> SudokuPuzzle | None:
    """Draw one puzzle; return None when emptying cells did not reach the number of clues of `kind`."""
    least, most = clue_range(kind.size, kind.difficulty)
    solution = full_board(rng, kind.size)
    target = rng.randint(least, most)
    board = list(solution)
    num_clues = len(solution)
    for cell in rng.sample(range(len(solution)), len(solution)):
        if num_clues == target:
            break
        board[cell] = 0
        if has_one_solution(tuple(board)):
            num_clues -= 1
        else:
            board[cell] = solution[cell]
    if num_clues > most:
        return None
    return SudokuPuzzle(
        kind.size, tuple(board), solution, tuple(cell for cell, digit in enumerate(board) if not digit)
    )


def generate(
    count: int, seed: int, kind: Kind | None = None, *, exclude: Collection[Board] = ()
) -> list[SudokuPuzzle]:
    """Return `count` puzzles whose canonical forms are distinct and not in `exclude`; deterministic
    in its arguments.

    Raises:
        AgentSystemError: there are too few puzzles of this kind.
    """
    kind = kind or Kind()
    rng = random.Random(f"sudoku-{seed}")
    return draw_distinct(
        count,
        lambda: draw_puzzle(rng, kind),
        lambda puzzle: canonical(puzzle.clues),
        exclude,
        MOST_MISSES,
        lambda number: (
            f"found {number} of {count} puzzles of size {kind.size} and difficulty "
            f"{kind.difficulty!r} that differ by more than a renaming of digits; ask for "
            "fewer, or for more clues"
        ),
    )


def generate_split(
    num_train: int, num_test: int, seed: int, kind: Kind | None = None
) -> tuple[list[SudokuPuzzle], list[SudokuPuzzle]]:
    """Return (train, test) puzzles, all different up to a renaming of digits."""
    test = generate(num_test, 2 * seed + 1, kind)
    train = generate(num_train, 2 * seed, kind, exclude={canonical(puzzle.clues) for puzzle in test})
    return train, test


def to_row(puzzle: SudokuPuzzle, index: int, split: str) -> dict[str, Any]:
    """Return the puzzle as a row of verl's schema; the environment reads and solves
    `extra_info.puzzle`.
    """
    return {
        "data_source": f"{DATA_SOURCE}_{puzzle.size}x{puzzle.size}",
        "prompt": [{"role": "user", "content": rows_text(puzzle.clues)}],
        "ability": "planning",
        "reward_model": {"style": "rule", "ground_truth": to_text(puzzle.solution)},
        "extra_info": {
            "split": split,
            "index": index,
            "puzzle": to_text(puzzle.clues),
            "size": puzzle.size,
            "num_clues": puzzle.num_clues,
        },
    }


TASKS = TaskSet(generate_split, to_row, key=lambda puzzle: canonical(puzzle.clues), difficulty=Kind)
