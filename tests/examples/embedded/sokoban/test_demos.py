import random
from dataclasses import replace

import pytest

from agent_system import AgentSystemError
from agent_system.workflows.sokoban import SokobanDifficulty, SokobanEnvOptions
from agent_system.workflows.sokoban.team import read_moves
from agent_system.workflows.sokoban.world.generate import generate, puzzle_key
from agent_system.workflows.sokoban.world.rules import MOVES, is_solved, move, parse_room, walk
from agent_system.workflows.sokoban.world.solver import solve
from examples.embedded.sokoban.demos import (
    CAREFUL,
    PUSHES,
    Demonstrators,
    Habits,
    Place,
    SokobanCourse,
    careful,
    careful_push,
    generate_split,
    make_demos,
    pick_place,
    stopped,
    team_success,
    walled,
)
from tests.agent_system.workflows.sokoban.conftest import UP

ENV = SokobanEnvOptions(view="compact", show_last=True, max_moves=2)
MAP = SokobanEnvOptions(max_moves=3)
CARE = SokobanCourse(rooms=30, habits_from=1.0, habits_before=0.0)


def room_of(prompt: str) -> str:
    return "\n".join(line for line in prompt.splitlines() if line.startswith("#"))


def test_careful_moves_are_the_solvers_up_to_where_the_box_turns() -> None:
    for conversation in make_demos(replace(CARE, count=60, env=MAP), 0):
        prompt, reply = (message["content"] for message in conversation)
        room, state = parse_room(room_of(prompt))
        moves = read_moves(reply).action
        solution = solve(room, state).solution
        assert solution is not None and solution.moves.startswith(moves) and 1 <= len(moves) <= 3
        assert reply.startswith("box ")


def test_care_says_what_is_around_the_box_and_the_player_what_is_pushed_and_from_where() -> None:
    room, state = parse_room(UP)
    seen = "box U . D @ L - R - me U $ D - L - R -"
    assert careful(room, state, 3) == (f"{seen}\npush U from U 0 R 0\n<moves>U</moves>", "U")
    turned = walk(room, state, "RU").states[-1]
    reply, moves = careful(room, turned, 9)
    seen = "box U . D - L - R @ me U - D - L $ R -"
    assert reply == f"{seen}\npush U from D 1 L 1\n<moves>{' '.join(moves)}</moves>" and is_solved(
        room, walk(room, turned, moves).states[-1]
    )
    with pytest.raises(AgentSystemError, match="draw another"):
        careful(room, walk(room, state, "U").states[-1], 3)


def test_care_solves_its_rooms_and_the_habits_some() -> None:
    rooms = generate(150, 5, SokobanDifficulty())
    assert team_success(CAREFUL, ENV, 12, rooms) == 1.0
    assert team_success(Habits(plan=0.0, check=1.0), ENV, 12, rooms) == 1.0, (
        "the Executor mends what is proposed"
    )
    assert 0.5 < team_success(Habits(), ENV, 12, rooms) < 0.9


def test_habits_rule_only_the_last_part() -> None:
    course = SokobanCourse(
        count=200, rooms=40, habits_from=0.5, habits_before=0.0, habits=Habits(plan=0.0, check=0.0)
    )
    careful = [conversation[1]["content"].startswith("box") for conversation in make_demos(course, 0)]
    assert all(careful[:100]) and not any(careful[100:])


def test_both_roles_are_shown_in_the_prompts_of_the_agents() -> None:
    prompts = [
        conversation[0]["content"] for conversation in make_demos(SokobanCourse(count=60, rooms=20), 3)
    ]
    assert all(prompt.startswith(("Plan:\nbox ", "Act:\nbox ")) for prompt in prompts)
    executor = [prompt for prompt in prompts if prompt.startswith("Act:")]
    assert 15 < len(executor) < 45 and all("\nPlan: " in prompt for prompt in executor)


def test_who_trusts_makes_the_plan() -> None:
    (puzzle,) = generate(1, 0, SokobanDifficulty())
    reply = Demonstrators(ENV, random.Random(0)).executor_demo(
        Place(puzzle.room, puzzle.start), "LR", Habits(check=0.0)
    )[1]["content"]
    assert reply == "<moves>L R</moves>"


def test_care_is_shown_off_the_good_way_too() -> None:
    rng = random.Random(0)
    off = 0
    for puzzle in generate(30, 1, SokobanDifficulty()):
        on = {puzzle.start, *walk(puzzle.room, puzzle.start, puzzle.solution.moves).states}
        state = pick_place(rng, puzzle, wander=8, env=ENV).state
        assert not is_solved(puzzle.room, state) and solve(puzzle.room, state).solution is not None
        off += state not in on
    assert off > 8


def test_the_line_about_the_last_turn_is_true_and_the_reply_does_not_run_into_the_same_wall() -> None:
    rng = random.Random(0)
    ends = []
    for puzzle in generate(30, 2, SokobanDifficulty()):
        before = pick_place(rng, puzzle, wander=8, env=ENV)
        place = stopped(rng, before)
        if place == before:
            assert all(move(place.room, place.state, letter) for letter in MOVES)
            continue
        assert move(place.room, place.state, place.stopped) is None and len(place.made) <= 1
        prompt, reply = (m["content"] for m in Demonstrators(ENV, rng).tool_demo(place, CAREFUL))
        ends.append(prompt.splitlines()[-1])
        assert ends[-1].split()[-2:] == ["stop", place.stopped] and not read_moves(reply).action.startswith(
            place.stopped
        )
    assert len({len(end.split()) for end in ends}) == 1 and len(set(ends)) > 8


def test_excluded_rooms_are_not_shown_and_a_seed_repeats() -> None:
    course = SokobanCourse(count=40, rooms=40, midway=0.0, env=MAP)
    shown = [puzzle_key(*parse_room(room_of(c[0]["content"]))) for c in make_demos(course, 0)]
    excluded = frozenset(shown[:20])
    again = make_demos(course, 0, exclude=excluded)
    assert not excluded & {puzzle_key(*parse_room(room_of(c[0]["content"]))) for c in again}
    assert again == make_demos(course, 0, exclude=excluded) != make_demos(course, 1, exclude=excluded)


def test_half_of_the_training_rooms_have_more_walls_and_the_test_rooms_are_the_generators() -> None:
    train, test = generate_split(60, 20, 3, SokobanDifficulty())
    assert test == generate(20, 7, SokobanDifficulty()) and len(train) == 60
    assert not {puzzle.key for puzzle in train} & {puzzle.key for puzzle in test}
    usual, more = (sum(len(puzzle.room.walls) for puzzle in half) / 30 for half in (train[:30], train[30:]))
    assert more > usual + 1
    assert walled(SokobanDifficulty(wall_share=0.4)) == SokobanDifficulty(wall_share=0.4)


def test_a_share_outside_0_to_1_is_named() -> None:
    with pytest.raises(AgentSystemError, match="plan is a share"):
        Habits(plan=1.2)
    with pytest.raises(AgentSystemError, match="midway is a share"):
        SokobanCourse(midway=-0.1)


def test_a_careful_push_values_every_push_and_makes_the_best() -> None:
    room, state = parse_room(UP)
    assert careful_push(room, state) == ("U 0 D 2 L x R 2\n<moves>U</moves>", "U")
    with pytest.raises(AgentSystemError, match="draw another"):
        careful_push(room, walk(room, state, "U").states[-1])
    rooms = generate(150, 5, SokobanDifficulty())
    assert team_success(CAREFUL, PUSHES.env, 12, rooms) == 1.0
    assert 0.2 < team_success(PUSHES.habits, PUSHES.env, 12, rooms) < 0.4
    replies = [
        conversation[1]["content"] for conversation in make_demos(replace(PUSHES, count=60, rooms=20), 0)
    ]
    assert any(reply.startswith("U ") for reply in replies) and any(
        reply.startswith("<moves>") for reply in replies
    )
