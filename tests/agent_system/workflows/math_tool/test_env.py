import pytest

from agent_system import AgentSystemError, Task
from agent_system.options import build_options
from agent_system.testing import check_env
from agent_system.workflows.math_tool import (
    REASONER,
    TOOL_USER,
    MathToolEnv,
    MathToolEnvOptions,
    MathToolOptions,
)
from agent_system.workflows.single import SINGLE
from tests.agent_system.workflows.math_tool.conftest import TASK


def world(**options) -> MathToolEnv:
    env = MathToolEnv(MathToolEnvOptions(**options))
    env.reset(TASK)
    return env


@pytest.mark.parametrize("agent", [REASONER, TOOL_USER, SINGLE])
@pytest.mark.parametrize(
    ("answer", "local"), [("42", 1.0), ("42.0", 1.0), ("41", 0.2), ("", 0.0), ("{env_prompt} %s", 0.2)]
)
async def test_an_answer_is_paid_for_its_box_and_for_being_right(
    agent: str, answer: str, local: float
) -> None:
    env = world()
    outcome = await env.act(agent, answer)
    assert outcome.local == pytest.approx(local)
    assert (await env.score(agent, answer)).team == (local == 1.0)
    name = {REASONER: "reasoner", TOOL_USER: "tool", SINGLE: "single"}[agent]
    assert (outcome.info[f"{name}/accuracy"], outcome.info[f"{name}/unparsed"]) == (local == 1.0, not answer)


async def test_the_episode_ends_where_both_agree_and_earns_whether_they_are_right() -> None:
    env = world()
    await env.act(REASONER, "41")
    await env.act(TOOL_USER, "42")
    outcome = await env.step("41")
    assert (
        not outcome.done
        and outcome.team == 0.0
        and (outcome.info["reasoner/accuracy"], outcome.info["tool/accuracy"]) == (0, 1)
    )
    assert env.observe(REASONER).info["last"] == {"reasoner": "41", "tool": "42"}
    await env.act(TOOL_USER, "84/2")
    await env.act(REASONER, "42")
    outcome = await env.step("42")
    assert (
        outcome.done and outcome.team == 1.0 and (outcome.info["success"], outcome.info["agreed"]) == (1, 1)
    )


@pytest.mark.parametrize(
    ("truth", "found", "reasoned", "close", "exact"),
    [
        ("1/3", "0.3333333333333333", r"\frac{1}{3}", True, False),
        ("0.3", "0.30000000000000004", "0.3", True, False),
        ("1/3", "0.3333", "1/3", False, False), ("1000000", "1000001", "1000000", False, False),
        (r"\sqrt{2}", "1.4142135623730951", r"\sqrt{2}", True, False),
    ],
)  # fmt: skip
async def test_a_computed_number_earns_and_agrees_within_the_tolerance(
    truth, found, reasoned, close, exact
) -> None:
    for tolerance, right in ((1e-6, close), (0.0, exact)):
        env = MathToolEnv(MathToolEnvOptions(tolerance=tolerance, decides="tool"))
        env.reset(Task("t", "?", "demo", truth))
        assert (await env.act(TOOL_USER, found)).local == pytest.approx(1.0 if right else 0.2)
        assert (await env.score(TOOL_USER, found)).team == right
        await env.act(REASONER, reasoned)
        outcome = await env.step("")
        assert (outcome.team, outcome.info["agreed"], outcome.info["reasoner/accuracy"]) == (right, right, 1)


async def test_what_the_reasoner_writes_is_compared_exactly() -> None:
    env = MathToolEnv()
    env.reset(Task("t", "?", "demo", "1/3"))
    assert (await env.act(REASONER, "0.3333333")).local == pytest.approx(0.2) and (
        await env.score(REASONER, "0.3333333")
    ).team == 0.0


async def test_agreement_on_a_wrong_answer_ends_the_episode_too_and_missing_answers_do_not_agree() -> None:
    env = world()
    await env.act(TOOL_USER, "")
    assert not (await env.step("")).done
    await env.act(TOOL_USER, "7")
    outcome = await env.step("7")
    assert outcome.done and outcome.info["success"] == 0.0


async def test_a_single_agent_answers_once_unless_it_says_nothing() -> None:
    env = world()
    await env.act(SINGLE, "")
    assert not (await env.step("")).done
    await env.act(SINGLE, "41.99999999")
    outcome = await env.step("41.99999999")
    assert (
        outcome.done
        and outcome.team == 1.0
        and "agreed" not in outcome.info
        and "reasoner/accuracy" not in outcome.info
    )


@pytest.mark.parametrize(("decides", "reasoned", "found", "right"), [
    ("reasoner", "42", "1", 1), ("reasoner", "1", "42", 0), ("reasoner", "", "42", 0),
    ("tool", "42", "1", 0), ("tool", "1", "42", 1), ("tool", "42", "", 0),
])  # fmt: skip
async def test_one_of_them_decides_where_they_differ(
    decides: str, reasoned: str, found: str, right: int
) -> None:
    env = world(decides=decides)
    await env.act(TOOL_USER, found)
    await env.act(REASONER, reasoned)
    outcome = await env.step(reasoned)
    assert (outcome.team, outcome.info["success"]) == (right, right)


@pytest.mark.parametrize("decides", ["reasoner", "tool"])
@pytest.mark.parametrize("role", [REASONER, TOOL_USER])
async def test_to_say_nothing_is_never_better_than_to_be_wrong(role: str, decides: str) -> None:
    """Whatever the other one says, and whether the team was right or wrong before."""
    replies = ("42", "41")
    other = TOOL_USER if role == REASONER else REASONER

    async def paid(first: tuple[str, str], second: tuple[str, str]) -> float:
        env, got = world(decides=decides), 0.0
        for said in (first, second):
            got = (await env.act(role, said[0])).local
            await env.act(other, said[1])
            got += (await env.step("")).team
        return got

    for before in ((right, left) for right in replies for left in replies):
        for beside in replies:
            assert await paid(before, ("", beside)) <= await paid(before, ("41", beside))


async def test_a_fork_is_independent() -> None:
    env = world()
    await env.fork().act(TOOL_USER, "42")
    outcome = await env.step("42")
    assert not outcome.done and "tool/accuracy" not in outcome.info


def test_any_play_conforms() -> None:
    first = [
        (TOOL_USER, "41"),
        (REASONER, "42"),
        "42",
        ("Nobody", "x"),
        (REASONER, "\x00\ud7ff"),
        (TOOL_USER, "print("),
        "",
        "1",
    ]
    for play in (
        [*first, (REASONER, "\\frac{84}{2}"), (TOOL_USER, "42"), ""],
        [*first, (SINGLE, "41"), "41"],
    ):
        check_env(
            lambda seed: MathToolEnv(seed=seed), TASK, play, team_range=(-1.0, 1.0), local_range=(0.0, 1.0)
        )


def test_bad_options_and_tasks_are_named() -> None:
    for cls, options, message in (
        (MathToolOptions, {"prompt_style": "tiny"}, "full, short"),
        (MathToolOptions, {"max_rounds": 0}, "at least 1, found 0"),
        (MathToolEnvOptions, {"decides": "reasoners"}, "did you mean 'reasoner'"),
        (MathToolEnvOptions, {"match_reward": -0.1}, "0 or more"),
        (MathToolEnvOptions, {"grader_timeout_s": 0.0}, "must be positive"),
    ):
        with pytest.raises(AgentSystemError, match=message):
            build_options(cls, options, "env.params")
    with pytest.raises(AgentSystemError, match="'t:1' has no ground truth"):
        MathToolEnv().reset(Task("t:1", "?"))


async def test_a_role_that_is_paid_nothing_for_itself_is_given_no_local_reward() -> None:
    env = world(format_reward=0.0, match_reward=0.0)
    assert [
        (await env.act(agent, action)).local
        for agent, action in ((REASONER, "42"), (TOOL_USER, ""), ("Nobody", "x"))
    ] == [None] * 3
    assert (await world(match_reward=0.0).act(REASONER, "")).local == 0.0
