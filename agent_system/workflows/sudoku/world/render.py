"""Boards for models and for people: text, and a GIF or PNG of an episode."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from agent_system.errors import AgentSystemError
from agent_system.workflows.sudoku.world.action import parse_action
from agent_system.workflows.sudoku.world.puzzle import Board, SudokuPuzzle, rows_text
from agent_system.workflows.sudoku.world.state import SudokuState, apply_action

if TYPE_CHECKING:
    from PIL.Image import Image

CELL = 36
MARGIN = 10
PAPER, INK, CLUE, RIGHT, WRONG = "#ffffff", "#202020", "#e4e4e4", "#cdeccd", "#f6c9c4"


def describe(state: SudokuState) -> str:
    """Return the `grid` view: the clues and, once something is written, the board below them."""
    clues = rows_text(state.puzzle.clues)
    return clues if state.board == state.puzzle.clues else f"{clues}\nNow:\n{rows_text(state.board)}"


def digits_text(board: Board) -> str:
    """Return a board as digits, 0 for an empty cell, one line per row: a fixed layout, which is
    also a whole grid as an action.
    """
    return rows_text(board, empty="0")


def replay(
    puzzle: SudokuPuzzle, actions: Iterable[str], max_cells: int = 81, clashes: str = "keep"
) -> list[SudokuState]:
    """Return the initial state and the state after every action of an Executor from a trajectory
    file, under the episode's options.
    """
    states = [SudokuState.start(puzzle)]
    for action in actions:
        states.append(apply_action(states[-1], parse_action(action, puzzle.size), max_cells, clashes).state)
    return states


def draw(state: SudokuState) -> Image:
    """Return a picture of a state: clues on grey, right cells on green, wrong cells on red.

    Raises:
        AgentSystemError: pillow is not installed.
    """
    try:
        from PIL import Image, ImageDraw
    except ModuleNotFoundError as error:
        raise AgentSystemError("pictures of boards need pillow: pip install pillow") from error
    size = state.puzzle.size
    puzzle = state.puzzle
    side = size * CELL
    box = round(size**0.5)
    image = Image.new("RGB", (side + 2 * MARGIN, side + 2 * MARGIN), PAPER)
    pen = ImageDraw.Draw(image)
    for cell, digit in enumerate(state.board):
        left = MARGIN + cell % size * CELL
        top = MARGIN + cell // size * CELL
        if digit:
            color = CLUE if puzzle.clues[cell] else RIGHT if digit == puzzle.solution[cell] else WRONG
            pen.rectangle((left, top, left + CELL, top + CELL), fill=color)
            pen.text(
                (left + CELL / 2, top + CELL / 2), str(digit), fill=INK, anchor="mm", font_size=CELL // 2
            )
    for line in range(size + 1):
        at = MARGIN + line * CELL
        width = 3 if line % box == 0 else 1
        pen.line((at, MARGIN, at, MARGIN + side), fill=INK, width=width)
        pen.line((MARGIN, at, MARGIN + side, at), fill=INK, width=width)
    return image


def save_episode(states: Sequence[SudokuState], path: Path, seconds: float = 0.8) -> None:
    """Write the states of an episode as an animation (`.gif`), or the last one as a picture
    (`.png`).

    Raises:
        AgentSystemError: another suffix, no states, or no pillow.
    """
    if path.suffix not in (".gif", ".png") or not states:
        raise AgentSystemError(
            f"an episode of at least one state is written as .gif or .png, found {len(states)} "
            f"states and {path.name!r}"
        )
    if path.suffix == ".png":
        draw(states[-1]).save(path)
        return
    first, *rest = [draw(state) for state in states]
    first.save(path, save_all=True, append_images=rest, duration=round(seconds * 1000), loop=0)
