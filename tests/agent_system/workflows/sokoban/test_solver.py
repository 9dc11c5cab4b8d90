import random
from collections import deque

import pytest

from agent_system.workflows.sokoban.world.generate import SokobanDifficulty, draw_puzzle
from agent_system.workflows.sokoban.world.rules import (
    MOVES,
    Room,
    SokobanState,
    is_solved,
    move,
    parse_room,
    walk,
)
from agent_system.workflows.sokoban.world.solver import is_lost, least_pushes, pulls_from, pushes_from, solve


def fewest_pushes(room: Room, start: SokobanState) -> int | None:
    """0-1 breadth-first search over single moves: slow, and simple enough to trust."""
    best = {start: 0}
    queue = deque([start])
    while queue:
        state = queue.popleft()
        if is_solved(room, state):
            return best[state]
        for letter in MOVES:
            after = move(room, state, letter)
            if after is None:
                continue
            push = after.boxes != state.boxes
            if best[state] + push < best.get(after, 10**9):
                best[after] = best[state] + push
                (queue.append if push else queue.appendleft)(after)
    return None


@pytest.mark.parametrize(
    ("text", "moves", "pushes"),
    [
        ("######\n#-.--#\n#-$--#\n#-@--#\n######", "U", 1),
        ("######\n#----#\n#@-$.#\n######", "RR", 1),
        ("######\n#----#\n#-.$@#\n#----#\n######", "L", 1),
        ("#######\n#--@--#\n#--$--#\n#-----#\n#---.-#\n#######", None, 3),
    ],
)
def test_hand_made_rooms(text: str, moves: str | None, pushes: int) -> None:
    room, state = parse_room(text)
    found = solve(room, state).solution
    assert found is not None and found.optimal and found.pushes == pushes
    assert moves is None or found.moves == moves
    assert is_solved(room, walk(room, state, found.moves).states[-1])


def test_it_agrees_with_exhaustive_search() -> None:
    rng = random.Random(3)
    compared = 0
    while compared < 25:
        puzzle = draw_puzzle(rng, SokobanDifficulty(size=5, boxes=2, min_pushes=1, wall_share=0.05))
        if puzzle is not None:
            assert puzzle.solution.pushes == fewest_pushes(puzzle.room, puzzle.start)
            assert least_pushes(puzzle.room, puzzle.start.boxes) <= puzzle.solution.pushes
            compared += 1


@pytest.mark.parametrize(
    "text", ["######\n#$---#\n#--.-#\n#-@--#\n######", "######\n#.#-@#\n###$-#\n#----#\n######"]
)
def test_an_unsolvable_room_is_proved_so(text: str) -> None:
    room, state = parse_room(text)
    search = solve(room, state)
    assert search.solution is None and search.exhausted
    assert fewest_pushes(room, state) is None


def test_a_search_that_gives_up_proves_nothing() -> None:
    room, state = parse_room("########\n#------#\n#-$--$-#\n#--@---#\n#-$----#\n#.-.-.-#\n#------#\n########")
    search = solve(room, state, max_expanded=3)
    assert search.solution is None and not search.exhausted and search.expanded == 3


def test_every_pull_is_undone_by_its_moves() -> None:
    room, state = parse_room("#######\n#-----#\n#-$.--#\n#--$.-#\n#-@---#\n#######")
    for moves, before in pulls_from(room, state):
        made = walk(room, before, moves)
        assert not made.illegal and made.pushes == 1 and made.states[-1] == state


def test_every_push_can_be_made() -> None:
    room, state = parse_room("#######\n#-----#\n#-$.--#\n#--$.-#\n#-@---#\n#######")
    found = pushes_from(room, state)
    assert len(found) == 8
    for moves, after in found:
        assert walk(room, state, moves).states[-1] == after


@pytest.mark.parametrize(
    ("rows", "lost"),
    [
        ("#$---#\n#-@.-#\n#----#", True),  # in a corner
        ("#-$--#\n#-@.-#\n#----#", True),  # along a wall without a goal
        ("#-$-.#\n#-@--#\n#----#", False),  # along a wall with one
        ("#*---#\n#-@--#\n#----#", False),
        ("#----#\n#-$.-#\n#-@--#", False),
        ("#----#\n##---#\n#-#@-#\n#--$.#", True),  # from the cell to push it from
    ],
)
def test_a_box_that_no_pushes_lead_to_a_goal_is_lost(rows: str, lost: bool) -> None:
    room, state = parse_room(f"######\n{rows}\n######")
    assert is_lost(room, state) is lost
    if lost:
        assert solve(room, state).solution is None
