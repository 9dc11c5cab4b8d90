"""Pushes as actions, for rooms with one box: the player walks to the cell behind the box by itself."""

from __future__ import annotations

from collections.abc import Callable

from agent_system.workflows.sokoban.world.rules import Room, SokobanState, SokobanWalk, is_solved, walk
from agent_system.workflows.sokoban.world.solver import pushes_from


def possible_pushes(room: Room, state: SokobanState) -> dict[str, SokobanState]:
    """Return the state after every push of the only box that can be made, by its direction."""
    return {path[-1]: after for path, after in pushes_from(room, state)}


def walk_pushes(room: Room, state: SokobanState, directions: str) -> SokobanWalk:
    """Push the only box in these directions in order until a push cannot be made or the room is
    solved.

    A push cannot be made when the player cannot walk to the cell behind the box, or the cell that
    the box would enter is a wall. The result's states are those after the pushes.
    """
    states: list[SokobanState] = []
    for direction in directions:
        after = possible_pushes(room, state).get(direction)
        if after is None:
            return SokobanWalk(tuple(states), len(states), True)
        state = after
        states.append(state)
        if is_solved(room, state):
            break
    return SokobanWalk(tuple(states), len(states), False)


ACTIONS: dict[str, Callable[[Room, SokobanState, str], SokobanWalk]] = {"moves": walk, "pushes": walk_pushes}
