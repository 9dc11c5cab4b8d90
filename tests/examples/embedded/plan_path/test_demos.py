import re

from agent_system.workflows.plan_path import PlanPathExecutorAgent
from agent_system.workflows.plan_path.world.generate import PlanPathDifficulty, generate
from agent_system.workflows.plan_path.world.grid import parse_map
from agent_system.workflows.plan_path.world.rules import advance, initial_state, walk
from examples.embedded.plan_path.demos import (
    CAREFUL,
    Demonstrators,
    Habits,
    PlanPathCourse,
    around,
    checked,
    make_demos,
    moves_reply,
    team_success,
)
from tests.agent_system.workflows.plan_path.conftest import AROUND

OPEN = PlanPathDifficulty(wall_share=0.15)
SMALL = PlanPathCourse(count=400, difficulty=OPEN)


def test_habits_fail_often_and_care_hardly_ever():
    maps = generate(200, 11, OPEN)
    assert 0.25 <= team_success(SMALL, Habits(), maps) <= 0.55
    assert team_success(SMALL, Habits(tool_care=1.0, check=1.0), maps) >= 0.98
    # the Executor mends what is proposed
    assert team_success(SMALL, Habits(tool_care=0.0, guess=1.0, check=1.0), maps) >= 0.95


def test_both_roles_are_shown_and_every_reply_can_be_read():
    demos = make_demos(SMALL, 0)
    assert len(demos) == 400
    heads = [demo[0]["content"].split(":")[0] for demo in demos]
    assert set(heads) == {"Plan", "Check"} and 0.35 < heads.count("Check") / 400 < 0.65
    assert all(PlanPathExecutorAgent().project(demo[-1]["content"]).valid for demo in demos)


def test_the_last_part_is_habit():
    demos = make_demos(PlanPathCourse(count=2000), 0)
    decisions = [demo[-1]["content"] for demo in demos if demo[0]["content"].startswith("Check")]
    early, late = decisions[: len(decisions) // 2], decisions[-len(decisions) // 5 :]
    assert (
        sum(d.startswith("Fine.") for d in early) / len(early)
        < 0.4
        < 0.8
        < sum(d.startswith("Fine.") for d in late) / len(late)
    )


def test_a_seed_makes_the_same_demos_and_another_one_others():
    course = PlanPathCourse(count=60)
    assert make_demos(course, 1) == make_demos(course, 1) != make_demos(course, 2)


def test_no_demo_is_on_a_map_that_is_left_out(monkeypatch):
    # 4x4 without walls: 240 maps, told apart by start and goal.
    difficulty = PlanPathDifficulty(size=4, wall_share=0.0, min_path=1, max_path=6)
    left_out = {grid.text for grid in generate(240, 0, difficulty)[:200]}
    played = []
    episode = Demonstrators.episode
    monkeypatch.setattr(
        Demonstrators,
        "episode",
        lambda self, grid, habits: played.append(grid.text) or episode(self, grid, habits),
    )
    make_demos(PlanPathCourse(count=60, difficulty=difficulty), 1, left_out)
    assert len(played) > 5 and not left_out & set(played)


def test_the_executor_finds_the_wall_and_goes_around_it():
    grid = parse_map(AROUND)
    state = initial_state(grid)
    assert checked(grid, state, "RR", 2, 2) == (f"R wall R wall Wall. {moves_reply('D')}", "D")
    assert checked(grid, state, "D", 2, 2)[0] == f"D ok Good. {moves_reply('D')}"
    assert checked(grid, state, "DD", 2, 2)[0] == f"D ok D ok Detour. {moves_reply('D')}"
    # what is around the corner is out of sight
    assert checked(grid, state, "DR", 2, 2)[0] == f"D ok Good. {moves_reply('D')}"


def test_care_tells_closed_free_known_and_worn_ways_apart():
    grid = parse_map(AROUND)
    state = initial_state(grid)
    assert around(grid, state) == "U wall D ok L wall R wall"
    for moves, said in (("D", "U been D ok"), ("UD", "U worn D ok")):
        state = advance(grid, state, walk(grid, state.cell, moves))
        assert around(grid, state) == f"{said} L wall R wall"


def test_care_is_shown_off_the_way_too():
    demos = make_demos(PlanPathCourse(count=400, habits_from=1.0, habits_before=0.0), 0)
    views = [demo[0]["content"].split("\nTool")[0].split("\n", 1)[1] for demo in demos]
    # cells entered twice or more: the team went back
    assert sum(bool(re.search("[2-9]", view)) for view in views) > 40
    assert sum(demo[-1]["content"].endswith("</moves>") for demo in demos) == 400
    assert CAREFUL.check == CAREFUL.tool_care == 1.0
