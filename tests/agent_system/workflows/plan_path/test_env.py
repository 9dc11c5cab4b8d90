import pickle
import timeit

import pytest

from agent_system import AgentSystemError, EnvRegistry, Task
from agent_system.options import build_options
from agent_system.workflows.plan_path import EXECUTOR, TOOL, PlanPathEnv, PlanPathEnvOptions
from agent_system.workflows.plan_path.world.generate import generate
from tests.agent_system.workflows.plan_path.conftest import AROUND


def test_the_world_is_found_by_name_and_judges_by_itself():
    assert EnvRegistry.get("plan_path") is PlanPathEnv and not PlanPathEnv.needs_ground_truth


def test_the_tool_moves_nothing_and_the_executor_once(start):
    env = start()
    env.act(TOOL, "DD")
    assert env.state.cell == 0
    env.act(EXECUTOR, "D")
    env.step("D")
    assert env.state.cell == 3


def test_step_alone_moves_in_a_turn_without_an_executor(start):
    env = start()
    assert not env.step("DDRR").done
    assert env.step("UU").done and env.state.cell == env.grid.goal


def test_moves_beyond_the_limit_are_ignored_and_counted(start):
    env = start(max_moves=2)
    info = env.act(EXECUTOR, "DDRRUU").info
    assert env.state.cell == 6 and info["executor/surplus"] == 4.0 and info["success"] == 0.0


def test_arriving_ends_the_episode_at_once_and_says_how_long_it_took(start):
    env = start(max_moves=10)
    outcome = env.act(EXECUTOR, "DUDDRRUU")
    assert outcome.done and outcome.info["success"] == 1.0 and outcome.info["progress"] == 1.0
    assert outcome.info["moves"] == 8.0 and outcome.info["path_ratio"] == pytest.approx(8 / 6)


def test_illegal_and_unparsable_actions_are_counted_by_role(start):
    env = start()
    for action in ("R", "no idea", "D"):
        env.act(TOOL, action)
        info = env.act(EXECUTOR, action).info
    assert (
        info["tool/illegal"],
        info["tool/unparsed"],
        info["executor/illegal"],
        info["executor/unparsed"],
    ) == (1.0, 1.0, 1.0, 1.0)


def test_forks_go_their_own_ways(start):
    env = start()
    env.act(EXECUTOR, "D")
    left, right = env.fork(), env.fork()
    left.act(EXECUTOR, "U")
    right.act(EXECUTOR, "DRR")
    right.act(TOOL, "nothing")
    assert (env.state.cell, left.state.cell, right.state.cell) == (3, 0, 8)
    assert env.act(TOOL, "D").info["tool/unparsed"] == 0.0
    assert env.step("D").info["moves"] == 1.0  # the fork kept in mind that the Executor has moved
    assert left.step("D").info["moves"] == 2.0


def test_forking_takes_less_than_50_microseconds(start):
    env = start(generate(1, 0)[0].text)
    assert min(timeit.repeat(env.fork, number=200, repeat=5)) / 200 < 50e-6


def test_an_environment_can_be_pickled_between_turns(start):
    env = start()
    env.step("DD")
    copy = pickle.loads(pickle.dumps(env))
    assert copy.step("RRUU").info == env.step("RRUU").info


def test_equal_states_have_equal_anchors_and_other_states_others(start):
    env = start(view="compact")
    first = env.step("D").observation
    env.step("U")
    again = env.step("D").observation
    assert again.info["anchor"] == first.info["anchor"] and again.text != first.text  # the view counts visits
    assert env.step("D").observation.info["anchor"] != first.info["anchor"]


def test_a_move_that_changes_nothing_changes_the_view(start):
    env = start(view="compact")
    first, second = (env.step("R").observation.text for _ in range(2))
    assert first.replace("at 2", "at 3") == second != first


def test_the_prompt_is_the_map_where_a_row_has_no_other():
    env = PlanPathEnv()
    env.reset(Task("t", AROUND))
    assert env.grid.text == AROUND


def test_a_map_that_cannot_be_solved_is_an_error_that_names_the_task():
    with pytest.raises(AgentSystemError, match=r"task 'closed'.*cannot be solved"):
        PlanPathEnv().reset(Task("closed", "?", extra={"map": "S#G"}))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"view": "compakt"}, "did you mean 'compact'"),
        ({"max_moves": 0}, "max_moves must be 1 or more"),
        ({"illegal_penalty": -0.1}, "illegal_penalty must be a finite number"),
        ({"progress_reward": float("nan")}, "progress_reward must be a finite number"),
        ({"moves": 3}, "moves is not an option"),
    ],
)
def test_bad_option_names_the_key(options, message):
    with pytest.raises(AgentSystemError, match=message):
        build_options(PlanPathEnvOptions, options, "env.params")
