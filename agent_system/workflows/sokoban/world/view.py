"""Views: the whole map, the map with spaces between cells, or a compact view of one box with a
fixed layout.
"""

from __future__ import annotations

from collections.abc import Iterable

from agent_system.workflows.sokoban.world.rules import (
    BOX,
    FLOOR,
    GOAL,
    MOVES,
    PLAYER,
    WALL,
    Room,
    SokobanState,
    render,
)
from agent_system.workflows.sokoban.world.solver import reachable

VIEWS = ("map", "spaced", "compact")
RADIUS = 2
_ROWS = "abcde"


def view_text(room: Room, state: SokobanState, view: str, actions: str = "moves") -> str:
    """Return the state in one of `VIEWS`; the compact view depends on the kind of actions, moves or
    pushes.
    """
    if view != "compact":
        return render(room, state, spaced=view == "spaced")
    return pushes_text(room, state) if actions == "pushes" else compact_text(room, state)


def compact_text(room: Room, state: SokobanState) -> str:
    """Return the compact view of a room with one box.

    The layout is the same in every state and signs are separated by spaces, so that a tiny model
    finds each cell at a fixed position:

        box U 1 R 0 goal U 1 R 0      rows and columns from the player to the box, and from the box to the goal
        U $ D - L - R #               the cells next to the player
        a # # # # #                   the 5x5 cells around the box, which is in the middle
        b # - . - -                   # wall or outside, $ box, . goal, @ player, - floor
        c # - $ - -
        d # - @ - -
        e # - - - -
    """
    (box,), (goal,) = state.boxes, room.goals
    lines = [
        f"box {way(room, state.player, box)} goal {way(room, box, goal)}",
        around(room, state, state.player),
    ]
    return "\n".join([*lines, *_rows_around(room, state, box)])


def pushes_text(room: Room, state: SokobanState) -> str:
    """Return the compact view of a room with one box whose actions are pushes.

    The layout is that of `compact_text`, without the player:

        goal U 1 R 0                  rows and columns from the box to the goal
        behind U + D + L + R +        whether the player can walk (+) to the cell from which it pushes the box in this direction
        a # # # # #                   the 5x5 cells around the box, which is in the middle
        b # - . - -
        c # - $ - -
        d # - - - -
        e # - - - -
    """
    (box,), (goal,) = state.boxes, room.goals
    cells = reachable(room, state)
    behind = (f"{letter} {'+' if box - room.step_of(letter) in cells else '-'}" for letter in MOVES)
    lines = [f"goal {way(room, box, goal)}", f"behind {' '.join(behind)}"]
    return "\n".join([*lines, *_rows_around(room, SokobanState(-1, state.boxes), box)])


def around(room: Room, state: SokobanState, cell: int) -> str:
    """Return the signs of the four cells next to `cell`: `U $ D - L - R #`."""
    return " ".join(f"{move} {_sign(room, state, cell + room.step_of(move))}" for move in MOVES)


def last_line(moves: str, stopped: str, max_moves: int) -> str:
    """Return the line about the last turn's moves: `last - U stop R` for U and then R, which was
    illegal; as long in every state.

    Args:
        moves: moves made in the last turn; empty at the start.
        stopped: the illegal move after them, or empty.
        max_moves: number of moves that are view_text, `-` for missing ones.
    """
    return f"last {' '.join(moves.rjust(max_moves, FLOOR))} stop {stopped or FLOOR}"


def way(room: Room, start: int, end: int) -> str:
    """Return the rows and columns from one cell to another: `U 1 R 0`."""
    (row, column), (end_row, end_column) = divmod(start, room.width), divmod(end, room.width)
    down = end_row - row
    right = end_column - column
    return f"{'D' if down > 0 else 'U'} {abs(down)} {'L' if right < 0 else 'R'} {abs(right)}"


def _rows_around(room: Room, state: SokobanState, box: int) -> list[str]:
    row, column = divmod(box, room.width)
    reach = range(-RADIUS, RADIUS + 1)
    columns = [column + right for right in reach]
    return [
        " ".join([name, *_row(room, state, row + down, columns)])
        for name, down in zip(_ROWS, reach, strict=True)
    ]


def _row(room: Room, state: SokobanState, row: int, columns: Iterable[int]) -> list[str]:
    inside = 0 <= row < room.height
    return [
        _sign(room, state, row * room.width + column) if inside and 0 <= column < room.width else WALL
        for column in columns
    ]


def _sign(room: Room, state: SokobanState, cell: int) -> str:
    if cell in room.walls:
        return WALL
    if cell in state.boxes:
        return BOX
    if cell == state.player:
        return PLAYER
    return GOAL if cell in room.goals else FLOOR
