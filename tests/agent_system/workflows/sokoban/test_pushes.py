"""Pushes as actions: the environment walks the player behind the box."""

import random

import pytest

from agent_system import AgentSystemError, Task
from agent_system.testing import check_env
from agent_system.workflows.sokoban import EXECUTOR, TOOL, SokobanDifficulty, SokobanEnv, SokobanEnvOptions
from agent_system.workflows.sokoban.world.generate import generate
from agent_system.workflows.sokoban.world.pushes import walk_pushes
from agent_system.workflows.sokoban.world.rules import (
    MOVES,
    Room,
    SokobanState,
    is_solved,
    parse_room,
    render,
)
from agent_system.workflows.sokoban.world.solver import pushes_from, solve
from agent_system.workflows.sokoban.world.view import RADIUS, pushes_text

from .conftest import TWO, UP

SEEN = """\
goal U 1 R 0
behind U + D + L + R +
a # # # # #
b # - . - -
c # - $ - -
d # - - - -
e # - - - -"""
# The player cannot leave its two cells without a push.
BEHIND = "######\n##.--#\n##$--#\n#@-###\n######\n######"
OPTIONS = {
    "view": "compact",
    "actions": "pushes",
    "max_moves": 2,
    "shortfall_penalty": 0.2,
    "deadlock_penalty": 0.3,
    "plan_weight": 0.0,
}


def start(text: str, **options: object) -> SokobanEnv:
    env = SokobanEnv(SokobanEnvOptions(**OPTIONS | options))
    env.reset(Task("t", text))
    return env


def test_the_player_walks_behind_the_box_and_pushes_it() -> None:
    room, state = parse_room(UP)
    made = walk_pushes(room, state, "RLU")
    assert not made.illegal and made.pushes == 3 and is_solved(room, made.states[-1])
    assert [render(room, after).splitlines()[2] for after in made.states] == ["#-@$-#", "#-$@-#", "#-@--#"]
    assert walk_pushes(room, state, "UUU").states == walk_pushes(room, state, "U").states, (
        "a solved room ends the pushes"
    )


def test_a_push_from_a_cell_that_the_player_cannot_reach_or_into_a_wall_is_illegal_and_changes_nothing() -> (
    None
):
    room, state = parse_room(BEHIND)
    for direction in "DLR":
        assert (
            walk_pushes(room, state, direction).states == () and walk_pushes(room, state, direction).illegal
        )
    env = start(BEHIND)
    outcome = env.act(EXECUTOR, "DU")
    assert outcome.local == pytest.approx(-0.05 - 0.1) and outcome.team == 0.0 and not outcome.done
    info = env.step("").info
    assert (info["moves"], info["pushes"], info["illegal"], info["success"]) == (0, 0, 1, 0.0)
    assert env.act(EXECUTOR, "U").done


def test_every_push_that_the_solver_knows_can_be_made_and_no_other() -> None:
    rng = random.Random(0)
    for puzzle in generate(20, 3, SokobanDifficulty(wall_share=0.2)):
        state = puzzle.start
        for _ in range(6):
            known = {path[-1]: after for path, after in pushes_from(puzzle.room, state)}
            assert {d: walk_pushes(puzzle.room, state, d).states[-1:] for d in MOVES} == {
                d: (known[d],) if d in known else () for d in MOVES
            }
            if not known:
                break
            state = known[rng.choice(sorted(known))]


def test_the_view_tells_from_where_the_box_can_be_pushed_but_not_where_the_player_is() -> None:
    assert pushes_text(*parse_room(UP)) == SEEN
    assert pushes_text(*parse_room(BEHIND)).splitlines()[1] == "behind U + D - L - R -"
    assert start(UP)._make_observation().text == SEEN
    assert start(UP, view="map")._make_observation().text == UP


def test_the_view_suffices_to_solve_the_rooms() -> None:
    rooms = generate(100, 77, SokobanDifficulty())
    assert sum(solves_from_views(puzzle.room, puzzle.start) for puzzle in rooms) == 100


def solves_from_views(room: Room, state: SokobanState) -> bool:
    for _ in range(12):
        made = walk_pushes(room, state, planned(pushes_text(room, state)))
        if not made.states:
            return False
        state = made.states[-1]
        if is_solved(room, state):
            return True
    return False


def planned(text: str, width: int = 13) -> str:
    """The best push by a planner that sees the view alone, and takes every cell that it does not show for a
    wall.
    """
    goal, behind, *rows = (line.split()[1:] for line in text.splitlines())
    middle = width // 2
    box = middle * width + middle
    target = (
        box
        + int(goal[1]) * (width if goal[0] == "D" else -width)
        + int(goal[3]) * (1 if goal[2] == "R" else -1)
    )
    floor = {
        (middle + down - RADIUS) * width + middle + right - RADIUS
        for down, row in enumerate(rows)
        for right, sign in enumerate(row)
        if sign != "#"
    } | {target}
    room = Room(width, width, frozenset(range(width * width)) - floor, frozenset({target}))
    left = {}
    for direction, sign in zip(behind[::2], behind[1::2], strict=True):
        to = box + room.step_of(direction)
        search = solve(room, SokobanState(box, frozenset({to}))) if sign == "+" and to in floor else None
        if search is not None and search.solution is not None:
            left[direction] = search.solution.pushes
    return min(left, key=left.__getitem__, default="U")


@pytest.mark.parametrize("agent", [TOOL, EXECUTOR])
@pytest.mark.parametrize(
    ("pushes", "short"), [("U", 0.0), ("RL", 0.5), ("RU", 0.5), ("L", 1.0), ("R", 1.0), ("north", 1.0)]
)
def test_pushes_away_cost_what_they_leave_in_pushes(agent: str, pushes: str, short: float) -> None:
    env = start(UP, illegal_penalty=0.0, format_penalty=0.0, deadlock_penalty=0.0, max_moves=2)
    assert env.act(agent, pushes).local == pytest.approx(-0.2 * short)


def test_a_room_with_two_boxes_and_an_unknown_kind_of_action_are_refused() -> None:
    with pytest.raises(
        AgentSystemError, match="actions=pushes is for rooms with one box, found 2; use actions=moves"
    ):
        start(TWO)
    with pytest.raises(AgentSystemError, match="did you mean 'pushes'"):
        SokobanEnvOptions(actions="pushs")


async def test_the_prompts_say_what_a_move_is(play) -> None:
    for actions, words in (("moves", "A move goes one cell"), ("pushes", "A move pushes the box one cell")):
        result = await play(
            tool=["<moves>U</moves>"], executor=["<moves>U</moves>"], env={"actions": actions}
        )
        assert all(words in sample.request.prompt_text for sample in result.episodes[0].samples)
        assert result.episodes[0].info["success"] == 1.0


def test_a_play_with_pushes_conforms() -> None:
    config = SokobanEnvOptions(
        view="compact", actions="pushes", max_moves=1, shortfall_penalty=0.2, deadlock_ends=True
    )
    play = [
        (TOOL, "R"),
        (EXECUTOR, "R"),
        "R",
        (TOOL, "north"),
        (EXECUTOR, ""),
        "",
        (TOOL, "LL"),
        (EXECUTOR, "L"),
        "L",
        (EXECUTOR, "U"),
    ]
    check_env(
        lambda seed: SokobanEnv(config, seed=seed),
        Task("t", UP),
        play,
        team_range=(0.0, 1.0),
        local_range=(-0.95, 0.5),
    )
