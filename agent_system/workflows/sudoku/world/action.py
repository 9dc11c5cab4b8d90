"""Parsing of actions into cells. Nothing is evaluated; ambiguous text is rejected (None).

Two forms are accepted, with brackets or without:

    cells   [[1, 2, 3], [4, 1, 2]]   or   1 2 3; 4 1 2      row, column, digit; 0 empties a cell
    grid    [[1, 2, 3, 4], ...]      or   a line per row: 1 2 3 4 or 1234; `.` or 0 leaves a cell empty
"""

from __future__ import annotations

import re
from dataclasses import dataclass

MAX_ACTION_CHARS = 4000

_GROUP = re.compile(r"\[([^\[\]()]*)\]|\(([^\[\]()]*)\)")
_SEPARATORS = re.compile(r"[\s,;]+")
_LINE = re.compile(r"[\n;/]+")
_NUMBERS = re.compile(r"[0-9.]+")
_ALLOWED = re.compile(r"[0-9.\s,;/\[\]()|]*")


@dataclass(frozen=True, slots=True)
class Move:
    """One cell and its digit.

    Attributes:
        row, column: counted from 1.
        digit: 1..size; 0 empties the cell. None of the three is checked against the board.
    """

    row: int
    column: int
    digit: int


@dataclass(frozen=True, slots=True)
class Action:
    """A parsed action.

    Attributes:
        moves: cells in the order of writing.
        whole: the action is a whole grid, which repeats the clues.
    """

    moves: tuple[Move, ...]
    whole: bool = False


def parse_action(text: str, size: int) -> Action | None:
    """Return the cells or the grid that `text` denotes, or None where it is neither.

    Args:
        text: generated text; None for text longer than `MAX_ACTION_CHARS`.
        size: rows of the board; a grid is exactly `size` lists of `size` numbers.
    """
    text = text.strip()
    if not text or len(text) > MAX_ACTION_CHARS or not _ALLOWED.fullmatch(text):
        return None
    groups = _groups(text.replace("|", " "))
    rows = [_numbers(group, size) for group in groups]
    if not rows or any(row is None for row in rows):
        return None
    numbers = [row for row in rows if row is not None]
    if len(numbers) == size and all(len(row) == size for row in numbers):
        return Action(
            tuple(Move(r, c, digit) for r, row in enumerate(numbers, 1) for c, digit in enumerate(row, 1)),
            whole=True,
        )
    if all(len(row) == 3 for row in numbers):
        return Action(tuple(Move(*row) for row in numbers))
    return None


def cells_text(moves: list[tuple[int, int]], size: int) -> str:
    """Return (cell, digit) pairs in the form of cells: `1 2 3; 4 1 2`."""
    return "; ".join(f"{cell // size + 1} {cell % size + 1} {digit}" for cell, digit in moves)


def action_text(action: Action, size: int, max_cells: int) -> str:
    """Return an action in its canonical form: a grid as one line per row, or at most `max_cells`
    cells as `1 2 3; 4 1 2`.
    """
    if action.whole:
        digits = [str(move.digit) for move in action.moves]
        return "\n".join(" ".join(digits[row : row + size]) for row in range(0, size * size, size))
    return "; ".join(f"{move.row} {move.column} {move.digit}" for move in action.moves[:max_cells])


def _groups(text: str) -> list[str]:
    """Return the contents of the innermost brackets, or else the lines; outside of them only
    separators and one outer pair are legal.
    """
    if any(bracket in text for bracket in "[]()"):
        outside = _SEPARATORS.sub("", _GROUP.sub("", text))
        return (
            [square or round_ for square, round_ in _GROUP.findall(text)]
            if outside in ("", "[]", "()")
            else []
        )
    return [line for line in _LINE.split(text) if line.strip()]


def _numbers(group: str, size: int) -> list[int] | None:
    parts = _NUMBERS.findall(group)
    if len(parts) == 1 and len(parts[0]) == size:
        parts = list(parts[0])
    values = [
        0 if part == "." else int(part) if part.isdigit() and len(part) <= 2 else None for part in parts
    ]
    return None if None in values else [value for value in values if value is not None]
