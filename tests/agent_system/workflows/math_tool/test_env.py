import pytest

from agent_system import AgentSystemError, Task
from agent_system.options import build_options
from agent_system.sandbox import Reason, RunResult, shared_sandbox
from agent_system.testing import check_env
from agent_system.workflows.math_tool import REASONER, TOOL_USER, MathToolEnv, MathToolEnvOptions, MathToolOptions
from tests.agent_system.workflows.math_tool.conftest import TASK


def world(**options) -> MathToolEnv:
    env = MathToolEnv(MathToolEnvOptions(**options))
    env.reset(TASK)
    return env


@pytest.mark.parametrize(("answer", "local"), [("42", 1.0), ("42.0", 1.0), ("41", 0.2), ("", 0.0), ("{env_prompt} %s", 0.2)])
async def test_the_reasoner_is_paid_for_a_box_and_for_the_right_answer(answer: str, local: float) -> None:
    env = world()
    assert (await env.act(REASONER, answer)).local == pytest.approx(local)
    assert (await env.score(REASONER, answer)).team == (local == 1.0)


@pytest.mark.parametrize(
    ("program", "local"),
    [
        ("print(6 * 7)", 1.0),
        ("print('so')\nprint(42)\n", 1.0),
        ("print('the answer is \\\\boxed{42}, as I said')", 1.0),
        ("print(42)\nprint('done')", 0.2),
        ("print(7)", 0.2),
        ("pass", 0.1),
        ("# the answer is 42", 0.1),
        ("print(42)\n1 / 0", 0.1),
        ("while True: pass", 0.1),
        ("print(42", 0.0),
        ("", 0.0),
    ],
)
async def test_the_tool_user_is_paid_for_building_running_and_the_right_answer(program: str, local: float) -> None:
    env = world()
    outcome = await env.act(TOOL_USER, program)
    assert outcome.local == pytest.approx(local) and (await env.score(TOOL_USER, program)).team == (local == 1.0)
    assert outcome.info["tool/limits"] == program.startswith("while") and outcome.info["tool/unparsed"] == (not program)


async def test_the_episode_ends_where_both_agree_and_earns_whether_they_are_right() -> None:
    env = world()
    await env.act(REASONER, "41")
    await env.act(TOOL_USER, "print(42)")
    outcome = await env.step("41")
    assert not outcome.done and outcome.team == 0.0 and (outcome.info["reasoner/accuracy"], outcome.info["tool/accuracy"]) == (0, 1)
    assert env.observe(REASONER).info["last"] == {"reasoner": "41", "tool": "42", "program": "print(42)"}
    await env.act(TOOL_USER, "print(84 / 2)")
    await env.act(REASONER, "42")
    outcome = await env.step("42")
    assert outcome.done and outcome.team == 1.0 and (outcome.info["success"], outcome.info["agreed"]) == (1, 1)


@pytest.mark.parametrize(
    ("truth", "program", "reasoned", "close", "exact"),
    [
        ("1/3", "print(1 / 3)", r"\frac{1}{3}", True, False), ("0.3", "print(0.1 + 0.2)", "0.3", True, False),
        ("1/3", "print(0.3333)", "1/3", False, False), ("1000000", "print(1000001)", "1000000", False, False),
        (r"\sqrt{2}", "print(2 ** 0.5)", r"\sqrt{2}", True, True),  # math-verify compares irrational numbers to six decimals
    ],
)  # fmt: skip
async def test_a_printed_number_earns_and_agrees_within_the_tolerance(truth, program, reasoned, close, exact) -> None:
    for tolerance, right in ((1e-6, close), (0.0, exact)):
        env = MathToolEnv(MathToolEnvOptions(tolerance=tolerance, decides="tool"))
        env.reset(Task("t", "?", "demo", truth))
        assert (await env.act(TOOL_USER, program)).local == pytest.approx(1.0 if right else 0.2)
        assert (await env.score(TOOL_USER, program)).team == right
        await env.act(REASONER, reasoned)
        outcome = await env.step("")
        assert (outcome.team, outcome.info["agreed"], outcome.info["reasoner/accuracy"]) == (right, right, 1)


async def test_what_the_reasoner_writes_is_compared_exactly() -> None:
    env = MathToolEnv()
    env.reset(Task("t", "?", "demo", "1/3"))
    assert (await env.act(REASONER, "0.3333333")).local == pytest.approx(0.2) and (await env.score(REASONER, "0.3333333")).team == 0.0


async def test_agreement_on_a_wrong_answer_ends_the_episode_too_and_missing_answers_do_not_agree() -> None:
    env = world()
    await env.act(TOOL_USER, "pass")
    assert not (await env.step("")).done
    await env.act(TOOL_USER, "print(7)")
    outcome = await env.step("7")
    assert outcome.done and outcome.info["success"] == 0.0


@pytest.mark.parametrize(("decides", "reasoned", "program", "right"), [
    ("reasoner", "42", "print(1)", 1), ("reasoner", "1", "print(42)", 0), ("reasoner", "", "print(42)", 0),
    ("tool", "42", "print(1)", 0), ("tool", "1", "print(42)", 1), ("tool", "42", "1 / 0", 0), ("tool", "42", "pass", 0),
])  # fmt: skip
async def test_one_of_them_decides_where_they_differ(decides: str, reasoned: str, program: str, right: int) -> None:
    env = world(decides=decides)
    await env.act(TOOL_USER, program)
    await env.act(REASONER, reasoned)
    outcome = await env.step(reasoned)
    assert (outcome.team, outcome.info["success"]) == (right, right)


@pytest.mark.parametrize("decides", ["reasoner", "tool"])
@pytest.mark.parametrize("role", [REASONER, TOOL_USER])
async def test_to_say_nothing_is_never_better_than_to_be_wrong(role: str, decides: str) -> None:
    """Whatever the other one says, and whether the team was right or wrong before."""
    replies = {REASONER: ("42", "41"), TOOL_USER: ("print(42)", "print(41)")}
    silent = {REASONER: [""], TOOL_USER: ["", "pass", "1 / 0", "print("]}
    other = TOOL_USER if role == REASONER else REASONER

    async def paid(first: tuple[str, str], second: tuple[str, str]) -> float:
        env, got = world(decides=decides), 0.0
        for said in (first, second):
            got = (await env.act(role, said[0])).local
            await env.act(other, said[1])
            got += (await env.step("")).team
        return got

    for before in ((right, left) for right in replies[role] for left in replies[other]):
        for beside in replies[other]:
            wrong = await paid(before, (replies[role][1], beside))
            for nothing in silent[role]:
                assert await paid(before, (nothing, beside)) <= wrong


async def test_a_program_runs_once_an_episode_whatever_forks_there_are() -> None:
    env = world()
    await env.fork().act(TOOL_USER, "print(42)")
    runs = shared_sandbox().stats()["runs"]
    assert (await env.act(TOOL_USER, "print(42)")).local == 1.0 and shared_sandbox().stats()["runs"] == runs


async def test_a_failing_sandbox_does_not_increase_the_reward(monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(program: str, stdin: str = "") -> RunResult:
        return RunResult(Reason.SANDBOX, message="worker lost")

    monkeypatch.setattr(shared_sandbox(), "run", broken)
    outcome = await world().act(TOOL_USER, "print(42)")
    assert (outcome.local, outcome.info["tool/built"], outcome.info["tool/ran"]) == (0.0, 0.0, 0.0)


def test_any_play_conforms() -> None:
    random = (TOOL_USER, "import random; print(random.random())")
    first = [(TOOL_USER, "print(41)"), (REASONER, "42"), "42", ("Nobody", "x"), (REASONER, "\x00\ud7ff"), (TOOL_USER, "print("), "", "1"]
    right = [(REASONER, "\\frac{84}{2}"), (TOOL_USER, "print(42)"), ""]
    for play in ([*first, *right], [*first, (TOOL_USER, "print(40)"), random, (TOOL_USER, "print(42)")]):
        check_env(lambda seed: MathToolEnv(seed=seed), TASK, play, team_range=(-1.0, 1.0), local_range=(0.0, 1.0))


def test_bad_options_and_tasks_are_named() -> None:
    for cls, options, message in (
        (MathToolOptions, {"prompt_style": "tiny"}, "full, short"),
        (MathToolEnvOptions, {"decides": "reasoners"}, "did you mean 'reasoner'"),
        (MathToolEnvOptions, {"match_reward": -0.1}, "0 or more"),
        (MathToolEnvOptions, {"grader_timeout_s": 0.0}, "must be positive"),
    ):
        with pytest.raises(AgentSystemError, match=message):
            build_options(cls, options, "env.params")
    with pytest.raises(AgentSystemError, match="'t:1' has no ground truth"):
        MathToolEnv().reset(Task("t:1", "?"))


async def test_a_role_that_is_paid_nothing_for_itself_is_given_no_local_reward() -> None:
    env = world(format_reward=0.0, match_reward=0.0, build_reward=0.0, run_reward=0.0, output_reward=0.0)
    assert [(await env.act(agent, action)).local for agent, action in ((REASONER, "42"), (TOOL_USER, ""), ("Nobody", "x"))] == [None] * 3
    assert (await world(match_reward=0.0).act(REASONER, "")).local == 0.0
