import pytest

from agent_system import AgentSystemError, Task
from agent_system.testing import check_env
from agent_system.workflows.math import SOLVER, VERIFIER, MathEnv, MathEnvOptions
from verl.trainer.config.reward import PropagationConfig, RewardConfig

APPROVE, REJECT = "<verify>approve</verify>", "<verify>reject</verify>"


async def test_metrics_tell_solver_and_verifier_apart(play):
    result = await play(
        solver=[r"\boxed{42}", r"\boxed{41}", r"\boxed{42}"],
        verifier=[REJECT, REJECT],
        options={"max_loop_num": 3},
    )
    info = result.episodes[0].info
    assert (
        info["solver/accuracy_loop_1"],
        info["solver/accuracy_loop_2"],
        info["solver/accuracy_loop_3"],
    ) == (1.0, 0.0, 1.0)
    assert (
        info["verifier/accuracy"] == 0.5
        and info["verifier/recall"] == 0.0
        and info["verifier/approvals"] == 0.0
    )
    assert "verifier/precision" not in info and info["loops"] == 3
    assert result.metrics["episode/success_rate"] == 1.0


async def test_precision_is_over_approvals(play):
    assert (await play(solver=[r"\boxed{41}"], verifier=[APPROVE])).metrics["env/verifier/precision"] == 0.0
    assert (await play(solver=[r"\boxed{42}"], verifier=[APPROVE])).metrics["env/verifier/precision"] == 1.0


@pytest.mark.parametrize(
    ("answer", "verdict", "local"),
    [("42", APPROVE, 0.5), ("41", REJECT, 0.5), ("42", REJECT, 0.0), ("41", APPROVE, 0.0), ("41", "hm", 0.0)],
)
async def test_right_verdict_earns_the_verdict_reward_and_a_missing_one_never(play, answer, verdict, local):
    result = await play(
        solver=[rf"\boxed{{{answer}}}", r"\boxed{42}"], verifier=[verdict], env={"verdict_reward": 0.5}
    )
    samples = result.episodes[0].samples
    assert samples[1].agent_id == VERIFIER and samples[1].rewards.local_reward == local
    assert all(sample.rewards.local_reward == 0.0 for sample in samples if sample.agent_id == SOLVER)


@pytest.mark.parametrize(
    ("first", "verdict_reward", "given", "team"),
    [
        (41, 1.0, [False, True, False], [1.0, 1.0, 1.0]),  # the Verifier rejects a wrong solution
        (42, 1.0, [False, True, False], [0.0, 1.0, 1.0]),  # and a right one
        (42, 0.0, [False, False, False], [1.0, 1.0, 1.0]),
    ],
)
async def test_an_agent_without_local_rewards_cuts_no_credit(play, first, verdict_reward, given, team):
    reward = RewardConfig(propagation=PropagationConfig(mode="threshold", theta=0.5, min_pass_rate=0.0))
    solver = [rf"\boxed{{{first}}}", r"\boxed{42}"]
    result = await play(
        solver=solver, verifier=[REJECT], env={"verdict_reward": verdict_reward}, reward=reward
    )
    samples = result.episodes[0].samples
    assert [s.rewards.local_given for s in samples] == given and [
        s.rewards.team_reward for s in samples
    ] == team


async def test_hanging_answer_scores_zero_is_counted_and_does_not_stop_the_run(play):
    result = await play(
        solver=[r"\boxed{99999999!}", r"\boxed{2\cdot 21}"],
        verifier=[REJECT],
        env={"grader_timeout_s": 0.5, "grader_workers": 1},
    )
    info = result.episodes[0].info
    assert info["grader/timeouts"] == 1.0 and info["solver/accuracy_loop_1"] == 0.0 and info["success"] == 1.0


async def test_fork_keeps_its_own_record():
    env = MathEnv()
    env.reset(Task("t", "q", "", "1"))
    await env.act(SOLVER, "1")
    fork = env.fork()
    await fork.act(SOLVER, "2")
    assert "solver/accuracy_loop_2" not in (await env.step("1")).info
    assert (await fork.step("2")).info["solver/accuracy_loop_2"] == 0.0


async def test_score_says_what_a_solution_would_earn_and_keeps_no_record_of_it():
    env = MathEnv()
    env.reset(Task("t", "q", "", "1"))
    await env.act(SOLVER, "1")
    worth = [
        (await env.score(agent, answer)).team
        for agent, answer in ((SOLVER, "1"), (SOLVER, "2"), (VERIFIER, "1"))
    ]
    assert worth == [1.0, 0.0, 0.0]
    assert "solver/accuracy_loop_2" not in (await env.step("1")).info


def test_task_without_ground_truth_is_refused():
    with pytest.raises(AgentSystemError, match="no ground truth"):
        MathEnv().reset(Task("t", "q"))


def test_the_environment_passes_the_conformance_test():
    actions = [(SOLVER, "1"), (VERIFIER, "approve"), (SOLVER, "2"), (VERIFIER, ""), "1"]
    check_env(
        lambda seed: MathEnv(seed=seed),
        Task("t", "q", "", "1"),
        actions,
        team_range=(0, 1),
        local_range=(0, 1),
    )


def test_bad_env_option_is_refused():
    for options in (
        {"grader_timeout_s": 0.0},
        {"grader_timeout_s": float("nan")},
        {"verdict_reward": float("nan")},
    ):
        with pytest.raises(AgentSystemError, match=next(iter(options))):
            MathEnvOptions(**options)


async def test_ground_truth_may_be_a_whole_solution():
    env = MathEnv()
    env.reset(Task("t", "q", "", r"So it is \boxed{\frac{4}{2}}."))
    assert (await env.step("2")).team == 1.0
