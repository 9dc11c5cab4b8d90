import random

import pytest

from agent_system import AgentSystemError, Task
from agent_system.workflows.sokoban import EXECUTOR, Difficulty, SokobanEnv, SokobanEnvOptions
from agent_system.workflows.sokoban.agents import read_moves
from agent_system.workflows.sokoban.demos import CAREFUL, Course, Demonstrators, Habits, is_good_plan, make_demos, solver_moves
from agent_system.workflows.sokoban.generate import generate, puzzle_key
from agent_system.workflows.sokoban.rules import is_solved, parse_room, walk
from agent_system.workflows.sokoban.solver import solve

ENV = SokobanEnvOptions(spaced=True, max_moves=20)


def room_of(prompt: str) -> str:
    return "\n".join(line for line in prompt.splitlines() if line.startswith("#"))


def plays(habits: Habits, count: int, turns: int = 3) -> float:
    """Share of rooms that the demonstrators themselves solve."""
    rng, team, solved = random.Random(1), Demonstrators(ENV), 0.0
    for puzzle in generate(count, 5, Difficulty()):
        env, outcome = SokobanEnv(ENV), None
        env.reset(Task("t", puzzle.text))
        for _ in range(turns):
            room, state = env._world.room, env._world.state
            if solve(room, state).solution is None:
                break
            bad_plans = 1.0 - habits.plan
            outcome = env.act(EXECUTOR, read_moves(team.executor_demo(rng, room, state, habits, bad_plans)[1]["content"]).action)
            env.step("")
            if outcome.done:
                break
        solved += outcome is not None and outcome.done
    return solved / count


def test_careful_demonstrations_solve_their_rooms() -> None:
    for conversation in make_demos(Course(count=60, rooms=30, habits_from=1.0, habits_before=0.0), 0, ENV):
        prompt, reply = (message["content"] for message in conversation)
        room, state = parse_room(room_of(prompt))
        moves = read_moves(reply).action
        assert is_good_plan(room, state, moves)
        if prompt.startswith("Plan:"):
            assert is_solved(room, walk(room, state, moves).states[-1])


def test_the_habits_solve_some_rooms_and_fail_often() -> None:
    assert plays(CAREFUL, 20) == 1.0
    assert 0.1 < plays(Habits(), 60) < 0.5


def test_habits_rule_only_the_last_part() -> None:
    course = Course(count=200, rooms=40, habits_from=0.5, habits_before=0.0, habits=Habits(plan=0.0, check=0.0), executor=0.0)
    good = []
    for conversation in make_demos(course, 0, ENV):
        room, state = parse_room(room_of(conversation[0]["content"]))
        good.append(is_good_plan(room, state, read_moves(conversation[1]["content"]).action))
    assert all(good[:100]) and sum(good[100:]) < 60


def test_both_roles_are_shown_in_the_prompts_of_the_agents() -> None:
    prompts = [conversation[0]["content"] for conversation in make_demos(Course(count=60, rooms=20), 3, ENV)]
    assert all(prompt.startswith(("Plan:\n# #", "Act:\n# #")) for prompt in prompts)
    executor = [prompt for prompt in prompts if prompt.startswith("Act:")]
    assert 15 < len(executor) < 45 and all("\nPlan: " in prompt for prompt in executor)


def test_excluded_rooms_are_not_shown_and_a_seed_repeats() -> None:
    course = Course(count=40, rooms=40, midway=0.0)
    shown = [puzzle_key(*parse_room(room_of(c[0]["content"]))) for c in make_demos(course, 0, ENV)]
    excluded = frozenset(shown[:20])
    again = make_demos(course, 0, ENV, exclude=excluded)
    assert not excluded & {puzzle_key(*parse_room(room_of(c[0]["content"]))) for c in again}
    assert again == make_demos(course, 0, ENV, exclude=excluded) != make_demos(course, 1, ENV, exclude=excluded)


def test_replies_keep_to_the_limit_of_moves() -> None:
    limited = SokobanEnvOptions(max_moves=2)
    for conversation in make_demos(Course(count=40, rooms=20), 0, limited):
        assert 1 <= len(read_moves(conversation[1]["content"]).action) <= 2
    puzzle = generate(1, 0, Difficulty())[0]
    assert solver_moves(puzzle.room, puzzle.start, 2) == puzzle.solution.moves[:2]


def test_a_share_outside_0_to_1_is_named() -> None:
    with pytest.raises(AgentSystemError, match="plan is a share"):
        Habits(plan=1.2)
    with pytest.raises(AgentSystemError, match="midway is a share"):
        Course(midway=-0.1)
