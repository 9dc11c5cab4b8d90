"""A push solver: A* for the fewest pushes, and among those the fewest moves.

A search node is a state right after a push; an edge walks the player to the next push and makes it.
The heuristic is the sum over boxes of the pushes to the nearest goal in the room without other
boxes, which is admissible.
"""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass
from functools import lru_cache
from itertools import count

from agent_system.workflows.sokoban.world.rules import MOVES, OPPOSITE, Room, SokobanState, is_solved

DEAD = 1_000_000
MAX_EXPANDED = 50_000
MAX_PROOF = 1000


@dataclass(frozen=True, slots=True)
class Solution:
    """A solution of a room.

    Attributes:
        moves: letters U D L R.
        pushes: number of moves that push a box.
        optimal: it is proved that no solution has fewer pushes.
    """

    moves: str
    pushes: int
    optimal: bool


@dataclass(frozen=True, slots=True)
class Search:
    """Result of a search.

    Attributes:
        solution: the solution found, or None.
        expanded: number of states expanded.
        exhausted: all reachable states were expanded, which proves that there is no solution.
    """

    solution: Solution | None
    expanded: int
    exhausted: bool


@lru_cache(maxsize=4096)
def push_distances(room: Room) -> dict[int, int]:
    """Return the pushes that a single box needs from each cell to its nearest goal; cells without a
    way are missing.
    """
    distances = dict.fromkeys(room.goals, 0)
    queue = deque(sorted(room.goals))
    while queue:
        cell = queue.popleft()
        for letter in MOVES:
            back = -room.step_of(letter)
            start = cell + back
            stand = cell + 2 * back
            if start in room.walls or stand in room.walls or start in distances:
                continue
            distances[start] = distances[cell] + 1
            queue.append(start)
    return distances


def least_pushes(room: Room, boxes: frozenset[int]) -> int:
    """Return a lower bound of the pushes that `boxes` need: `DEAD` or more when a box can reach no
    goal, 0 only when solved.
    """
    distances = push_distances(room)
    return sum(distances.get(box, DEAD) for box in boxes)


def is_lost(room: Room, state: SokobanState) -> bool:
    """Return whether `state` is proved unsolvable by a search of at most `MAX_PROOF` states, which
    suffice for one box.

    Causes: a box in a corner or along a wall from where no pushes lead to a goal, boxes that block
    each other, a player cut off from them.
    """
    return least_pushes(room, state.boxes) >= DEAD or solve(room, state, MAX_PROOF).exhausted


def reachable(room: Room, state: SokobanState) -> dict[int, str]:
    """Return every cell that the player can reach without a push, with a shortest list of moves."""
    paths = {state.player: ""}
    queue = deque([state.player])
    while queue:
        cell = queue.popleft()
        for letter in MOVES:
            to = cell + room.step_of(letter)
            if to not in paths and to not in room.walls and to not in state.boxes:
                paths[to] = paths[cell] + letter
                queue.append(to)
    return paths


def pushes_from(room: Room, state: SokobanState) -> list[tuple[str, SokobanState]]:
    """Return every possible next push: the moves up to and including it, and the state after it."""
    paths = reachable(room, state)
    pushes = []
    for box in sorted(state.boxes):
        for letter in MOVES:
            step = room.step_of(letter)
            beyond = box + step
            if box - step in paths and beyond not in room.walls and beyond not in state.boxes:
                pushes.append(
                    (paths[box - step] + letter, SokobanState(box, (state.boxes - {box}) | {beyond}))
                )
    return pushes


@lru_cache(maxsize=8192)
def solve(room: Room, state: SokobanState, max_expanded: int = MAX_EXPANDED) -> Search:
    """Search for the solution with the fewest pushes, then moves, from `state`; stop after
    `max_expanded` states.
    """
    order = count()
    best = {state: (0, 0)}
    frontier = [(least_pushes(room, state.boxes), 0, next(order), 0, state, "")]
    expanded = 0
    while frontier:
        bound, num_moves, _, pushes, here, moves = heapq.heappop(frontier)
        if bound >= DEAD:
            break
        if (pushes, num_moves) > best[here]:
            continue
        if is_solved(room, here):
            return Search(Solution(moves, pushes, optimal=True), expanded, exhausted=False)
        if expanded >= max_expanded:
            return Search(None, expanded, exhausted=False)
        expanded += 1
        for path, after in pushes_from(room, here):
            cost = (pushes + 1, num_moves + len(path))
            bound = cost[0] + least_pushes(room, after.boxes)
            if bound < DEAD and cost < best.get(after, (DEAD, 0)):
                best[after] = cost
                heapq.heappush(frontier, (bound, cost[1], next(order), cost[0], after, moves + path))
    return Search(None, expanded, exhausted=True)


def pulls_from(room: Room, state: SokobanState) -> list[tuple[str, SokobanState]]:
    """Return every possible next pull in reverse play: the forward moves from the state after the
    pull back to `state`, and that state.
    """
    paths = reachable(room, state)
    pulls = []
    for box in sorted(state.boxes):
        for letter in MOVES:
            step = room.step_of(letter)
            stand = box - step
            back = box - 2 * step
            if stand in paths and back not in room.walls and back not in state.boxes:
                home = "".join(OPPOSITE[m] for m in reversed(paths[stand]))
                pulls.append((letter + home, SokobanState(back, (state.boxes - {box}) | {stand})))
    return pulls
