import pytest

from agent_system import AgentSystemError
from agent_system.workflows.moves import parse_moves
from agent_system.workflows.sokoban.world.rules import is_solved, move, parse_room, render, walk

ROOM = "######\n#+-*-#\n#-$--#\n#--.-#\n######".replace("+", "@")


def test_room_reads_and_renders_the_same() -> None:
    room, state = parse_room(ROOM)
    assert render(room, state) == ROOM
    assert parse_room(render(room, state, spaced=True)) == (room, state)
    assert room.floor == frozenset(range(30)) - room.walls


def test_player_walks_pushes_and_is_stopped() -> None:
    room, state = parse_room("######\n#@$-$#\n#..--#\n######")
    assert move(room, state, "U") is None and move(room, state, "L") is None
    pushed = move(room, state, "R")
    assert pushed is not None and render(room, pushed).splitlines()[1] == "#-@$$#"
    assert move(room, pushed, "R") is None, "two boxes in a row do not move"
    walked = move(room, state, "D")
    assert walked is not None and render(room, walked).splitlines()[1:3] == ["#-$-$#", "#+.--#"]


def test_boxes_are_not_pulled_and_stop_at_walls() -> None:
    room, state = parse_room("#####\n#-@$#\n#--.#\n#####")
    assert move(room, state, "R") is None
    away = move(room, state, "L")
    assert away is not None and away.boxes == state.boxes


def test_walk_stops_at_the_first_illegal_move_and_when_solved() -> None:
    room, state = parse_room("######\n#@$-.#\n#----#\n######")
    made = walk(room, state, "RRD")
    assert (
        len(made.states) == 2 and made.pushes == 2 and not made.illegal and is_solved(room, made.states[-1])
    )
    stopped = walk(room, state, "DLR")
    assert len(stopped.states) == 1 and stopped.illegal


@pytest.mark.parametrize(
    ("text", "moves"),
    [
        ("U R R D", "URRD"), ("urrd", "URRD"), ('["U", "D"]', "UD"), ("up, Left;down right", "ULDR"),
        ("U,R\nD", "URD"),
        ("", None), ("none", None), ("U2", None), ("U X", None), ("go up", None), ("U -> D", None),
        ("[]", None),
    ],
)  # fmt: skip
def test_moves_are_read_or_refused_never_guessed(text: str, moves: str | None) -> None:
    assert parse_moves(text) == moves


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "at least 3 rows"),
        ("####\n#@-#\n#####", "equal length"),
        ("#####\n#@$x#\n#--.#\n#####", "found x"),
        ("#####\n#@$.-\n#---#\n#####", "open border"),
        ("#####\n#-$.#\n#---#\n#####", "0 players"),
        ("#####\n#@$.#\n#-$-#\n#####", "2 boxes, 1 goals"),
        ("#####\n#@--#\n#---#\n#####", "0 boxes"),
    ],
)
def test_a_malformed_room_is_named(text: str, words: str) -> None:
    with pytest.raises(AgentSystemError, match=words):
        parse_room(text)
