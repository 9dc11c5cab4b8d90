import pickle
import time

import pytest

from agent_system import AgentSystemError, Task
from agent_system.options import build_options
from agent_system.workflows.sudoku import EXECUTOR, TOOL, SudokuEnv, SudokuEnvOptions

SOLUTION = "1234341221434321"
SOLVED = "/".join(SOLUTION[i : i + 4] for i in range(0, 16, 4))


def test_the_executor_writes_at_once_and_step_does_not_write_again(make_env):
    env = make_env()
    assert env.act(EXECUTOR, "1 2 2").info["right"] == 1 / 8
    outcome = env.step("1 4 4")
    assert outcome.info["right"] == 1 / 8 and not outcome.done
    assert outcome.observation.text.splitlines()[4:6] == ["Now:", "1 2 3 ."]


def test_step_writes_in_a_turn_without_an_executor(make_env):
    env = make_env()
    assert env.step("1 2 2").team > 0
    env.act(EXECUTOR, "1 4 4")
    env.step("")
    assert env.step(SOLVED).done


def test_the_solved_board_is_success_and_ends_the_episode(make_env):
    outcome = make_env().act(EXECUTOR, SOLVED)
    assert outcome.done and outcome.team == pytest.approx(1.5)
    assert outcome.info["success"] == outcome.info["progress"] == 1.0


def test_a_full_board_with_a_mistake_is_not_a_success(make_env):
    outcome = make_env().act(EXECUTOR, "1 2 2; 1 4 4; 2 1 3; 2 3 1; 3 2 1; 3 4 3; 4 1 4; 4 3 1")
    assert not outcome.done and outcome.info["success"] == 0.0 and outcome.info["right"] == 7 / 8


def test_a_plan_changes_nothing_but_what_the_tool_is_credited_with(make_env):
    env = make_env()
    before = env.observe(TOOL)
    assert env.act(TOOL, SOLVED).info["tool/progress"] == 1.0
    after = env.observe(TOOL)
    assert after.text == before.text and after.info["anchor"] == before.info["anchor"]
    assert (
        env.observe(EXECUTOR).info["proposal"] == "1 2 3 4\n3 4 1 2\n2 1 4 3\n4 3 2 1"
        and env.step("").info["success"] == 0.0
    )


def test_clues_stand_whatever_the_executor_writes(make_env):
    env = make_env()
    for action in ("1 1 2", "1 1 0", SOLVED.replace("1", "2"), "1 2 2; 1 3 1"):
        env.act(EXECUTOR, action)
        assert all(
            clue in (0, digit) for clue, digit in zip(env.state.puzzle.clues, env.state.board, strict=True)
        )
    info = env.step("").info
    assert info["clues_touched"] == info["illegal"] == 4 and info["success"] == 0.0


def test_what_went_wrong_is_counted_by_role(make_env):
    env = make_env(max_cells=1)
    for action in ("?", "1 1 1", "9 9 9", "1 2 1", "1 2 2; 1 4 4; 2 1 3"):
        env.act(EXECUTOR, action)
    info = env.act(TOOL, "??").info
    assert {name: info[name] for name in ("unreadable", "illegal", "clues_touched", "clashes", "cells_cut")} == {
        "unreadable": 1, "illegal": 2, "clues_touched": 1, "clashes": 1, "cells_cut": 2,
    }  # fmt: skip
    assert info["tool/unreadable"] == 1 and info["tool/illegal"] == 0


def test_forks_do_not_touch_each_other(make_env):
    env = make_env()
    env.act(TOOL, "1 2 2")
    left, right = env.fork(), env.fork()
    assert left.act(EXECUTOR, SOLVED).done and left.state.solved
    right.act(EXECUTOR, "1 1 1")
    right.act(TOOL, "?")
    assert env.observe().text == right.observe().text != left.observe().text
    assert (env.observe().info["proposal"], right.observe().info["proposal"]) == (
        "1 2 2",
        "none: the reply holds no plan",
    )
    info = env.act(EXECUTOR, "1 2 2").info
    assert info["illegal"] == info["tool/unreadable"] == 0 and info["tool/progress"] == 1 / 8
    assert env.fork().act(EXECUTOR, SOLVED).team == pytest.approx(0.5 * 7 / 8 + 1.0)


def test_a_fork_knows_who_has_acted_in_the_turn(make_env):
    env = make_env()
    env.act(EXECUTOR, "1 2 2")
    assert env.fork().step("1 4 4").info["right"] == 1 / 8


@pytest.mark.timing
def test_a_fork_is_cheap(make_env):
    env = make_env()
    times = []
    for _ in range(20):
        start = time.perf_counter()
        for _ in range(100):
            env.fork()
        times.append((time.perf_counter() - start) / 100)
    assert min(times) < 50e-6


def test_an_environment_can_be_pickled_in_the_middle(make_env):
    env = make_env()
    env.act(EXECUTOR, "1 2 2")
    copy = pickle.loads(pickle.dumps(env))
    assert copy.observe() == env.observe() and copy.step(SOLVED) == env.step(SOLVED)


def test_anchors_are_equal_for_equal_boards_only(make_env):
    env, other = make_env(), make_env()
    env.act(EXECUTOR, "1 2 2")
    assert env.observe().info["anchor"] != other.observe().info["anchor"]
    other.act(EXECUTOR, "1 2 3")
    other.act(EXECUTOR, "1 2 2")
    assert env.observe().info["anchor"] == other.observe().info["anchor"]


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ({}, "no extra_info.puzzle"),
        ({"puzzle": 5}, "no extra_info.puzzle"),
        ({"puzzle": "123"}, "16 cells"),
        ({"puzzle": "." * 16}, "several solutions"),
        ({"puzzle": "11" + "." * 14}, "no solution"),
    ],
)
def test_a_task_without_a_puzzle_that_can_be_solved_is_refused(extra, message):
    with pytest.raises(AgentSystemError, match=message):
        SudokuEnv().reset(Task("t", "p", extra=extra))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_cells": 0}, "max_cells must be 1 or more"),
        ({"clashes": "forbid"}, "env.params.clashes.*refuse"),
        ({"plan_reward": -1.0}, "plan_reward must be a finite number, 0 or more"),
        ({"wrong_penalty": float("inf")}, "wrong_penalty must be a finite number"),
        ({"penalty": 1.0}, "not an option"),
    ],
)
def test_a_bad_option_names_its_key(options, message):
    with pytest.raises(AgentSystemError, match=message):
        build_options(SudokuEnvOptions, options, "env.params")


def test_a_refused_digit_is_counted_and_changes_nothing(make_env):
    kept, refused = make_env(), make_env(clashes="refuse")
    for env in (kept, refused):
        assert env.act(EXECUTOR, "1 2 1").info["clashes"] == 1.0
    assert refused.state.board == refused.state.puzzle.clues != kept.state.board
