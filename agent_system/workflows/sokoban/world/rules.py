"""The rules of Sokoban as pure functions: rooms, states, moves, text.

A cell is `row * width + column`. Every room is enclosed by a ring of walls, so every floor cell has
four neighbours.

    #  wall     @  player     $  box     .  goal     +  player on a goal     *  box on a goal     -  floor
"""

from __future__ import annotations

from dataclasses import dataclass

from agent_system.errors import AgentSystemError

MOVES = "UDLR"
OPPOSITE = {"U": "D", "D": "U", "L": "R", "R": "L"}
WALL, PLAYER, BOX, GOAL, PLAYER_ON_GOAL, BOX_ON_GOAL, FLOOR = "#@$.+*-"


@dataclass(frozen=True)
class Room:
    """The static part: width and height in cells including the ring of walls, inner and outer
    walls, goals.
    """

    width: int
    height: int
    walls: frozenset[int]
    goals: frozenset[int]

    def step_of(self, move: str) -> int:
        """Return the change of the cell number by `move`."""
        return {"U": -self.width, "D": self.width, "L": -1, "R": 1}[move]

    @property
    def floor(self) -> frozenset[int]:
        """Every cell without a wall."""
        return frozenset(range(self.width * self.height)) - self.walls


@dataclass(frozen=True, slots=True)
class SokobanState:
    """The part that moves change: cells of the player and the boxes."""

    player: int
    boxes: frozenset[int]


@dataclass(frozen=True, slots=True)
class SokobanWalk:
    """Result of a list of moves.

    Attributes:
        states: the state after every move that was made, oldest first.
        pushes: number of moves that pushed a box.
        illegal: a move ran into a wall or a blocked box; it and all later ones were not made.
    """

    states: tuple[SokobanState, ...]
    pushes: int
    illegal: bool


def parse_room(text: str) -> tuple[Room, SokobanState]:
    """Parse a room.

    Raises:
        AgentSystemError: rows of different lengths, an unknown character, an open border, not one
            player, not as many boxes as goals.
    """
    rows = [line.replace(" ", "") for line in text.strip().splitlines()]
    width = len(rows[0]) if rows else 0
    height = len(rows)
    if width < 3 or height < 3 or any(len(row) != width for row in rows):
        raise AgentSystemError(
            "a Sokoban room needs at least 3 rows of equal length (floor is '-', not a blank), "
            f"found {text!r:.120}"
        )
    cells = "".join(rows)
    unknown = sorted(set(cells) - set("#@$.+*-"))
    if unknown:
        raise AgentSystemError(
            f"a Sokoban room is written in # @ $ . + * -, found {' '.join(unknown)} in {text!r:.120}"
        )
    where = {
        kind: frozenset(i for i, cell in enumerate(cells) if cell in kind)
        for kind in ("#", "@+", "$*", ".+*")
    }
    border = {
        i for i in range(width * height) if i % width in (0, width - 1) or i // width in (0, height - 1)
    }
    if not border <= where["#"]:
        raise AgentSystemError(
            f"a Sokoban room is closed by a ring of walls '#', found an open border in {text!r:.120}"
        )
    players = where["@+"]
    boxes = where["$*"]
    goals = where[".+*"]
    if len(players) != 1 or not boxes or len(boxes) != len(goals):
        raise AgentSystemError(
            f"a Sokoban room has one player and as many boxes as goals (at least one), "
            f"found {len(players)} players, {len(boxes)} boxes, {len(goals)} goals in {text!r:.120}"
        )
    return Room(width, height, where["#"], goals), SokobanState(next(iter(players)), boxes)


def render(room: Room, state: SokobanState, *, spaced: bool = False) -> str:
    """Return the room as text, one row per line; `spaced` puts a space between cells, so that a
    tokenizer makes each cell a token.
    """
    separator = " " if spaced else ""
    cells = [_cell(room, state, i) for i in range(room.width * room.height)]
    return "\n".join(separator.join(cells[i : i + room.width]) for i in range(0, len(cells), room.width))


def _cell(room: Room, state: SokobanState, at: int) -> str:
    if at in room.walls:
        return WALL
    on_goal = at in room.goals
    if at == state.player:
        return PLAYER_ON_GOAL if on_goal else PLAYER
    if at in state.boxes:
        return BOX_ON_GOAL if on_goal else BOX
    return GOAL if on_goal else FLOOR


def move(room: Room, state: SokobanState, letter: str) -> SokobanState | None:
    """Return the state after one move, or None for a move into a wall or a blocked box."""
    step = room.step_of(letter)
    to = state.player + step
    if to in room.walls:
        return None
    if to not in state.boxes:
        return SokobanState(to, state.boxes)
    beyond = to + step
    if beyond in room.walls or beyond in state.boxes:
        return None
    return SokobanState(to, (state.boxes - {to}) | {beyond})


def walk(room: Room, state: SokobanState, moves: str) -> SokobanWalk:
    """Make the moves in order until one is illegal or the room is solved."""
    states: list[SokobanState] = []
    pushes = 0
    for letter in moves:
        after = move(room, state, letter)
        if after is None:
            return SokobanWalk(tuple(states), pushes, True)
        pushes += after.boxes != state.boxes
        state = after
        states.append(state)
        if is_solved(room, state):
            break
    return SokobanWalk(tuple(states), pushes, False)


def is_solved(room: Room, state: SokobanState) -> bool:
    """Return whether every box is on a goal."""
    return state.boxes == room.goals


def boxes_on_goals(room: Room, state: SokobanState) -> int:
    """Return the number of boxes on goals."""
    return len(state.boxes & room.goals)
