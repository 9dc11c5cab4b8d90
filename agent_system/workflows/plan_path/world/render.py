"""Views of a state: the whole grid, a compact view of the cells straight ahead, and a GIF."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agent_system.workflows.moves import parse_moves
from agent_system.workflows.plan_path.world.grid import GOAL, MOVES, WALL, GridMap
from agent_system.workflows.plan_path.world.rules import PlanPathState, walk

HERE = "@"
COLOURS = {
    "free": (250, 250, 248),
    "wall": (60, 64, 72),
    "goal": (46, 160, 67),
    "seen": (198, 219, 239),
    "here": (214, 69, 65),
}


def grid_text(grid: GridMap, state: PlanPathState) -> str:
    """Return the whole map with the position `@` and the goal `G`, one row per line, and the
    coordinates of both.
    """
    (row, column), (goal_row, goal_column) = grid.place(state.cell), grid.place(grid.goal)
    rows = grid.text.replace("S", ".").splitlines()
    rows[row] = rows[row][:column] + HERE + rows[row][column + 1 :]
    picture = "\n".join(rows)
    return f"{picture}\nYou (@) are at row {row}, column {column}. The goal (G) is at row {goal_row}, column {goal_column}. # is a wall."


def compact_text(grid: GridMap, state: PlanPathState, radius: int) -> str:
    """Return the offset of the goal, the visits of this cell, and for each move the `radius` cells
    straight ahead, nearest first.

    Signs are separated by spaces and the layout is the same in every state, so that a tiny model
    finds each cell at a fixed position: `G` goal, `#` wall or outside, `.` free, `1` to `9` visits
    of a free cell.
    """
    down, right = grid.way_to_goal(state.cell)
    way = f"{'D' if down >= 0 else 'U'} {abs(down)} {'R' if right >= 0 else 'L'} {abs(right)}"
    row, column = grid.place(state.cell)
    lines = (
        " ".join(
            [move, *(_sign(grid, state, row + i * rows, column + i * columns) for i in range(1, radius + 1))]
        )
        for move, (rows, columns) in MOVES.items()
    )
    return f"go {way} at {state.visits[state.cell]}\n{' '.join(lines)}"


def _sign(grid: GridMap, state: PlanPathState, row: int, column: int) -> str:
    cell = row * grid.width + column
    if not (0 <= row < grid.height and 0 <= column < grid.width) or cell in grid.walls:
        return WALL
    if cell == grid.goal:
        return GOAL
    return str(state.visits[cell]) if state.visits[cell] else "."


def replay(grid: GridMap, actions: Sequence[str], max_moves: int) -> list[int]:
    """Return the start and every cell entered in an episode, given the Executor's actions from a
    trajectory file.

    Illegal moves, moves beyond `max_moves` and unreadable actions do not change the position, as in
    the environment.
    """
    cells = [grid.start]
    for action in actions:
        cells += walk(grid, cells[-1], (parse_moves(action) or "")[:max_moves]).cells
    return cells


def save_gif(
    path: Path, grid: GridMap, cells: Sequence[int], *, cell_pixels: int = 24, frame_ms: int = 250
) -> None:
    """Write an episode as an animated GIF, one frame per cell of `cells` (the start first); needs
    pillow.

    Raises:
        ValueError: `cells` is empty.
    """
    if not cells:
        raise ValueError(
            "save_gif needs one cell or more, found none; pass the start and every cell entered after it"
        )
    frames = [_frame(grid, cells[: i + 1], cell_pixels) for i in range(len(cells))]
    frames[0].save(path, format="GIF", save_all=True, append_images=frames[1:], duration=frame_ms, loop=0)


def _frame(grid: GridMap, cells: Sequence[int], pixels: int) -> Any:
    from PIL import Image, ImageDraw

    image = Image.new("RGB", (grid.width * pixels, grid.height * pixels), COLOURS["free"])
    draw = ImageDraw.Draw(image)

    def fill(cell: int, colour: str, inset: int) -> None:
        row, column = grid.place(cell)
        left = column * pixels + inset
        top = row * pixels + inset
        draw.rectangle(
            (left, top, left + pixels - 1 - 2 * inset, top + pixels - 1 - 2 * inset), fill=COLOURS[colour]
        )

    for cell in sorted(grid.walls):
        fill(cell, "wall", 0)
    for cell in cells[:-1]:
        fill(cell, "seen", pixels // 16)
    fill(grid.goal, "goal", pixels // 8)
    fill(cells[-1], "here", pixels // 4)
    return image
