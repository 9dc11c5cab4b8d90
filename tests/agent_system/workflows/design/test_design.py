"""A design is read and played in the episode that wrote it, and its roles' replies name it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agent_system.errors import AgentSystemError
from agent_system.rollout import Collector
from agent_system.workflows.design import DESIGNER, Designer, DesignOptions, Roles, priced
from agent_system.workflows.design.orchestra import PROMPT, filled
from agent_system.workflows.graph import Team
from tests.agent_system.workflows.design.conftest import FILE, LOOP, ROLES, TASKS, design
from verl.trainer.config.reward import CustomRewardFunctionConfig, RewardConfig

VOTE = design([{"vote": "Solver", "n": 5, "id": "code"}])
ALONE = design([{"call": "Solver", "id": "a"}], "a")


async def test_the_team_of_a_design_plays_in_the_same_episode(
    make_designed: Callable[..., Collector],
) -> None:
    result = await make_designed([VOTE, design(), ALONE, "no design"]).collect(TASKS[:1], 4, step=1)
    calls = [[s.agent_id for s in episode.samples] for episode in result.episodes]
    assert calls == [
        [DESIGNER, *["Solver"] * 5],
        [DESIGNER, "Solver", "Checker"],
        [DESIGNER, "Solver"],
        [DESIGNER],
    ]
    assert [episode.team_reward for episode in result.episodes] == [1, 1, 1, 0]
    assert [episode.answer for episode in result.episodes] == ["C", "C", "C", ""]
    assert result.metrics["env/design/valid"] == 0.75
    assert result.metrics["agent/designer_agent/valid_rate"] == 0.75
    assert result.metrics["env/design/calls"] == pytest.approx((5 + 6 + 1) / 3)
    assert result.metrics["env/design/steps"] == pytest.approx((1 + 4 + 1) / 3)


async def test_the_designer_has_no_design_and_its_roles_have_the_key_of_theirs(
    make_designed: Callable[..., Collector],
) -> None:
    renamed = VOTE.replace("code", "other")
    result = await make_designed([VOTE, design(), renamed]).collect(TASKS[:1], 3, step=1)
    assert {s.identity.design for e in result.episodes for s in e.samples if s.agent_id == DESIGNER} == {""}
    keys = [{s.identity.design for s in e.samples if s.agent_id != DESIGNER} for e in result.episodes]
    assert keys[0] == keys[2] != keys[1] and all(len(key) == 1 for key in keys)


async def test_roles_read_each_other_and_never_the_design(make_designed: Callable[..., Collector]) -> None:
    filer = {"call": "Filer", "sees": ["SECRET"]}
    marked = design([{"call": "Solver", "id": "SECRET"}, {"call": "Checker"}, filer], "SECRET")
    result = await make_designed([marked]).collect(TASKS[:1], 1, step=1)
    prompts = {s.agent_id: s.request.messages[0]["content"] for s in result.episodes[0].samples}
    assert prompts["Checker"] == "Check: red kiwi code C" and prompts["Filer"] == "File: C"
    assert not any("SECRET" in prompts[role] for role in ROLES)


async def test_a_role_that_quotes_all_replies_reads_the_judge_too_but_not_the_design(
    make_designed: Callable[..., Collector], tmp_path: Path
) -> None:
    roles = "".join(f"  {name}: {{prompt: '{{env_prompt}}|{{team_context}}'}}\n" for name in ROLES)
    file = tmp_path / "roles.yaml"
    file.write_text(
        f"team: 1\nagents:\n{roles}do: [{{call: Solver, id: a}}, {{call: Checker}}, {{call: Filer}}]\n"
        "return: a\n"
    )
    steps = [{"vote": "Solver", "n": 2, "id": "a", "best": "Checker"}, {"call": "Filer"}]
    result = await make_designed([design(steps, "a")], file=file).collect(TASKS[:1], 1, step=1)
    last = result.episodes[0].samples[-1].request.messages[0]["content"]
    assert last == "red kiwi code|Solver: C\n\nSolver: C\n\nChecker: right"


def test_the_prompt_shows_roles_and_example_and_may_have_braces(roles: Roles) -> None:
    prompt = Designer(DESIGNER, DesignOptions(str(FILE)), roles).messages({"env_prompt": "red kiwi code"})
    text = prompt[0]["content"]
    assert "Task: red kiwi code\n" in text and "Roles: Solver, Checker, Filer\n" in text
    example = text.split("Example: ")[1].split("\n")[0]
    assert roles.read(example).calls == 7
    assert '{"call": role, "id": name}' in text and "{roles}" in PROMPT
    assert filled("{x} {env_prompt} {roles}", {"roles": "{y}"}).format(env_prompt="z") == "{x} z {y}"


@pytest.mark.parametrize("fence", ["```json\n{}\n```", "<think>hm {{</think>{}", "  {}\n"])
def test_a_reply_may_have_a_fence_or_thinking(roles: Roles, fence: str) -> None:
    assert roles.read(fence.replace("{}", VOTE)).key == roles.read(VOTE).key


def test_the_steps_of_the_file_as_a_design_are_the_team_of_the_file(roles: Roles) -> None:
    team = Team.load(FILE)
    text = json.dumps({key: team.source.value[key] for key in ("do", "return")})
    assert (roles.read(text).key, roles.read(text).calls) == (team.key(), team.calls)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "needs a team file with the roles"),
        (
            {"file": str(FILE), "designer": "Solver"},
            r"team.yaml:4:3 agents.Solver: is the name of the Designer",
        ),
        ({"file": str(FILE), "max_calls": 0}, "max_calls must be 1 or more, found 0"),
        (
            {"file": str(FILE), "designer": "Boss"},
            "agent.agent_ids has Designer Agent, which the file has not; set .*Boss,Solver",
        ),
    ],
)
def test_options_that_do_not_fit_are_one_line(
    make_designed: Callable[..., Collector], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(AgentSystemError, match=message) as error:
        make_designed([], file="" if not options else FILE, options=options)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("agent", "team", "local"), [(None, 1 - 0.01 * 9, 0), (DESIGNER, 1, -0.01 * 9)])
async def test_the_price_is_paid_by_the_team_or_by_the_designer(
    make_designed: Callable[..., Collector], agent: str | None, team: float, local: float
) -> None:
    path = "agent_system.workflows.design.reward"
    kwargs = {"price": 0.01, "agent": agent}
    reward = RewardConfig(custom_reward_function=CustomRewardFunctionConfig(f"{path}:priced", kwargs))
    result = await make_designed([ALONE], reward=reward).collect(TASKS[:1], 1, step=1)
    tokens = sum(s.response_tokens for s in result.episodes[0].samples)
    scale = tokens / 9
    first, second = result.episodes[0].samples
    assert first.rewards.local_reward == pytest.approx(local * scale) and second.rewards.local_reward == 0
    expected = team if agent else 1 - 0.01 * tokens
    assert result.episodes[0].team_reward == pytest.approx(expected)
    assert result.metrics["reward/tokens/mean"] == tokens == result.metrics["episode/tokens"]


async def test_a_price_for_an_agent_without_calls_is_an_error(
    make_designed: Callable[..., Collector],
) -> None:
    result = await make_designed([ALONE]).collect(TASKS[:1], 1, step=1)
    with pytest.raises(AgentSystemError, match="agent='Boss'"):
        priced(result.episodes[0], 0.1, "Boss")


def test_designs_are_counted_by_what_they_call(roles: Roles) -> None:
    steps = [
        {"parallel": [LOOP[0], {"vote": "Filer", "n": 3, "id": "f"}]},
        {"vote": ["f", "code"], "id": "v"},
    ]
    read = roles.read(design(steps, "v"))
    assert (read.calls, read.steps) == (9, 7)
