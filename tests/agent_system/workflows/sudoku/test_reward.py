import random

import pytest

from agent_system.workflows.sudoku import EXECUTOR, TOOL

SOLUTION = "1234341221434321"
SOLVED = "/".join(SOLUTION[i : i + 4] for i in range(0, 16, 4))
PLAN_WORTH = 0.5  # plan_reward by default, for all cells right


def test_filling_and_emptying_in_circles_earns_nothing_after_the_first_time(make_env):
    env = make_env()
    first = env.act(EXECUTOR, "1 2 2").team + env.step("").team
    assert first == pytest.approx(0.5 / 8)
    for _ in range(20):
        for action in ("1 2 0", "1 2 2", "1 2 4", "1 2 2"):
            outcome = env.act(EXECUTOR, action)
            assert outcome.team == 0.0 and outcome.local <= 0.0
            assert env.step(action).team == 0.0


def test_swapping_right_cells_for_others_earns_nothing(make_env):
    env = make_env()
    assert env.act(EXECUTOR, "1 2 2; 1 4 4").team > 0
    assert env.act(EXECUTOR, "1 2 0; 1 4 0; 2 1 3; 2 3 1").team == 0.0
    assert env.act(EXECUTOR, "1 2 2").team == pytest.approx(0.5 / 8)


def test_plans_in_circles_earn_what_the_last_one_is_worth(make_env):
    env = make_env()
    rng = random.Random(0)
    plans = ["1 2 2", SOLVED, "no plan", "1 2 3", "2 1 3; 1 2 2", "1 1 1"]
    for _ in range(30):
        total = sum(env.act(TOOL, rng.choice(plans)).local for _ in range(20)) + env.act(TOOL, "1 2 0").local
        assert total <= PLAN_WORTH * env.state.progress
        env = make_env()


def test_a_plan_is_paid_by_the_cells_that_it_would_make_right(make_env):
    paid = [
        make_env(clash_penalty=0.0, wrong_penalty=0.0).act(TOOL, plan).local
        for plan in ("1 2 4", "1 2 2", "1 2 2; 1 4 4", SOLVED)
    ]
    assert paid == pytest.approx([0.0, PLAN_WORTH / 8, PLAN_WORTH / 4, PLAN_WORTH])


def test_a_bad_plan_after_a_good_one_costs_what_the_good_one_earned(make_env):
    env = make_env(illegal_penalty=0.0, clash_penalty=0.0, wrong_penalty=0.0)
    assert env.act(TOOL, SOLVED).local + env.act(TOOL, "?").local == pytest.approx(0.0)


@pytest.mark.parametrize("role", [TOOL, EXECUTOR])
def test_wrong_form_clues_and_clashes_cost_either_role(make_env, role):
    assert make_env(clash_penalty=0.0, wrong_penalty=0.0).act(role, "I do not know").local == pytest.approx(
        -0.1
    )
    assert make_env(wrong_penalty=0.0).act(role, "1 1 1").local == pytest.approx(-0.1)
    assert make_env().act(role, "I do not know").local == pytest.approx(-0.5)
    assert make_env().act(role, "1 1 1").local == pytest.approx(-0.4)
    assert make_env(plan_reward=0.0).act(role, "1 2 2; 1 1 1").local == pytest.approx(-0.1 - 0.3 / 2)
    assert make_env(wrong_penalty=0.0).act(role, "1 2 1").local == pytest.approx(-0.1)
    assert make_env(illegal_penalty=0.3, clash_penalty=0.0, wrong_penalty=0.0).act(
        role, "9 9 9"
    ).local == pytest.approx(-0.3)


@pytest.mark.parametrize("role", [TOOL, EXECUTOR])
def test_a_wrong_digit_costs_its_share_of_the_cells_written(make_env, role):
    env = make_env(clash_penalty=0.0, plan_reward=0.0, wrong_penalty=0.4)
    assert env.act(role, "1 2 4").local == pytest.approx(-0.4)
    assert env.act(role, "1 2 2; 1 4 4; 2 1 3; 2 3 4").local == pytest.approx(-0.1)
    # the right digit, taken away
    assert env.act(role, "1 2 0").local == pytest.approx(-0.4 if role == EXECUTOR else 0.0)
    assert env.act(role, "2 3 0; 3 2 0").local == 0.0  # a wrong one, and an empty cell


@pytest.mark.parametrize("role", [TOOL, EXECUTOR])
@pytest.mark.parametrize("clashes", ["keep", "refuse", "clear"])
def test_only_right_digits_lower_the_penalty_of_a_wrong_one(make_env, role, clashes):
    def local(action):
        env = make_env(clashes=clashes, plan_reward=0.0)
        env.act(EXECUTOR, "1 2 2; 2 1 3")
        return env.act(role, action).local

    for wrong in ("1 4 3", "1 4 2", "1 2 0", "1 2 4"):
        alone = local(wrong)
        assert alone <= -0.3
        for beside in ("2 1 3", "3 2 0", "2 1 3; 2 1 3; 2 1 3", "3 2 0; 3 2 0; 3 2 0; 4 3 0", wrong):
            assert local(f"{beside}; {wrong}") <= alone + 1e-9
            assert local(f"{wrong}; {beside}") <= alone + 1e-9
        assert local(f"{wrong}; 2 3 1") > alone


@pytest.mark.parametrize("role", [TOOL, EXECUTOR])
def test_the_first_wrong_digit_in_a_cell_is_not_forgiven_by_the_second_that_is_right(make_env, role):
    assert make_env(plan_reward=0.0).act(role, "1 2 4; 1 2 2").local == pytest.approx(-0.3)


@pytest.mark.parametrize("role", [TOOL, EXECUTOR])
def test_what_cannot_be_read_is_never_the_cheapest(make_env, role):
    """Else a role learns to say nothing that can be judged."""
    rng = random.Random(2)
    junk = make_env().act(role, "?").local
    for _ in range(300):
        cells = [(rng.randint(0, 5), rng.randint(1, 4), rng.randint(0, 5)) for _ in range(rng.randint(1, 4))]
        assert make_env().act(role, "; ".join(f"{r} {c} {d}" for r, c, d in cells)).local >= junk - 1e-9


def test_no_sequence_of_actions_earns_the_team_more_than_progress_and_success(make_env):
    rng = random.Random(1)
    for _ in range(20):
        env, earned = make_env(), 0.0
        for _ in range(60):
            earned += env.act(EXECUTOR, f"{rng.randint(1, 4)} {rng.randint(1, 4)} {rng.randint(0, 4)}").team
            assert earned <= 0.5
        assert earned == pytest.approx(0.5 * env.step("").info["progress"])
        assert earned + env.act(EXECUTOR, SOLVED).team == pytest.approx(1.5)


def test_a_role_that_is_paid_nothing_for_itself_is_given_no_local_reward(make_env):
    free = {"plan_reward": 0.0, "illegal_penalty": 0.0, "clash_penalty": 0.0, "wrong_penalty": 0.0}
    assert all(
        make_env(**free).act(agent, action).local is None
        for agent in (TOOL, EXECUTOR)
        for action in ("", "1 2 2")
    )
    paid = [make_env(**free | {"plan_reward": 0.5}).act(agent, "").local for agent in (TOOL, EXECUTOR)]
    assert paid == [0.0, None]
