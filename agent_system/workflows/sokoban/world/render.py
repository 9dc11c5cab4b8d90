"""Pictures of rooms and episodes; `rules.render` makes the text."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from agent_system.workflows.moves import parse_moves
from agent_system.workflows.sokoban.world.pushes import ACTIONS
from agent_system.workflows.sokoban.world.rules import Room, SokobanState, parse_room

if TYPE_CHECKING:
    from PIL.Image import Image

CELL = 32
_GROUND, _WALL, _GOAL, _BOX, _HOME, _PLAYER = "#f4efe6", "#5b5750", "#d1495b", "#c68b3f", "#4f9d69", "#2e5eaa"


def replay(
    room_text: str, actions: Sequence[str], max_moves: int, kind: str = "moves"
) -> tuple[Room, list[SokobanState]]:
    """Return the room and every state of an episode, given the room's text and the Executor's
    actions from a trajectory file.

    `kind` is `env.params.actions`: moves or pushes. Illegal moves, moves beyond `max_moves` and
    unreadable actions do not change the state, as in the environment.
    """
    room, state = parse_room(room_text)
    states = [state]
    for action in actions:
        states += ACTIONS[kind](room, states[-1], (parse_moves(action) or "")[:max_moves]).states
    return room, states


def draw(room: Room, state: SokobanState, cell: int = CELL) -> Image:
    """Return a picture of one state with `cell` pixels per cell side."""
    from PIL import Image, ImageDraw

    image = Image.new("RGB", (room.width * cell, room.height * cell), _GROUND)
    pen = ImageDraw.Draw(image)
    for at in range(room.width * room.height):
        x = at % room.width * cell
        y = at // room.width * cell
        if at in room.walls:
            pen.rectangle((x, y, x + cell - 1, y + cell - 1), fill=_WALL)
        if at in room.goals:
            pen.ellipse((x + cell // 3, y + cell // 3, x + 2 * cell // 3, y + 2 * cell // 3), fill=_GOAL)
        if at in state.boxes:
            colour = _HOME if at in room.goals else _BOX
            pen.rectangle(
                (x + cell // 8, y + cell // 8, x + 7 * cell // 8, y + 7 * cell // 8),
                fill=colour,
                outline=_WALL,
            )
        if at == state.player:
            pen.ellipse((x + cell // 5, y + cell // 5, x + 4 * cell // 5, y + 4 * cell // 5), fill=_PLAYER)
    return image


def save_png(path: Path, room: Room, state: SokobanState) -> None:
    """Write one state as a PNG."""
    draw(room, state).save(path, format="PNG")


def save_gif(path: Path, room: Room, states: Sequence[SokobanState], frame_ms: int = 300) -> None:
    """Write an episode as a GIF; the last state is shown for four frames."""
    first, *rest = (draw(room, state) for state in states)
    durations = [frame_ms] * len(rest) + [4 * frame_ms]
    first.save(path, format="GIF", save_all=True, append_images=rest, duration=durations, loop=0)
