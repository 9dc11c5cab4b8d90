"""The order of calls, what they read, votes, and waves that do not depend on which reply comes first."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from agent_system import Projection, Task
from agent_system.errors import AgentSystemError
from agent_system.rollout import CollectResult
from agent_system.workflows.graph import Team
from agent_system.workflows.math import MathEnv
from tests.agent_system.workflows.graph.conftest import AGENTS, PAIR, Play, elect
from verl.trainer.config.reward import RewardConfig
from verl.trainer.config.run import TreeConfig

TASK = Task("t", "What?", "demo", "7")


def team(steps: str, returned: str = "s", agents: str = AGENTS) -> str:
    return f"team: 1\nagents:\n{agents}do:\n{steps}\nreturn: {returned}\n"


def agents_of(text: str) -> dict[str, Callable[..., str]]:
    """A script for each agent of a team: it says its name and the number of its call."""

    def script(name: str) -> Callable[..., str]:
        count = iter(range(1000))
        return lambda *_: f"{name}{next(count)}"

    return {name: script(name) for name in Team.parse(text).agents}


async def play(make_team: Play, text: str, **more: Any) -> CollectResult:
    return await make_team(text, more.pop("replies", None) or agents_of(text), **more).collect(
        [TASK], 1, step=0
    )


def spoken(result: CollectResult) -> list[str]:
    return [sample.text for sample in result.episodes[0].samples]


def read(result: CollectResult) -> dict[str, str]:
    """What each reply read, without the question."""
    return {
        s.text: " ".join(s.request.messages[0]["content"].split("What?", 1)[1].split())
        for s in result.episodes[0].samples
    }


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ("- {call: A, id: s}\n- {call: B}\n- {call: C}", "A0 B0 C0"),
        ("- {loop: 2, do: [{call: A, id: s}, {call: B}, {call: C}]}", "A0 B0 C0 A1 B1 C1"),
        ("- {loop: 3, do: [{call: A, id: s}, {call: B, unless: {loop: first}}, {call: C, unless: {loop: "
            "last}}]}", "A0 C0 A1 B0 C1 A2 B1"),
        ("- {call: A, id: s}\n- if: {of: s, is: A0}\n  do: [{call: B}]\n  else: [{call: C}]\n- {loop: 1, do: "
            "[{call: C}]}", "A0 B0 C0"),
        ("- {call: A, id: s}\n- if: {of: s, is: A1}\n  do: [{call: B}]\n  else: [{call: C}]", "A0 C0"),
        ("- {loop: 5, do: [{call: A, id: s}, {stop: {of: s, in: [A1, A2]}}, {call: B}]}\n- {call: C}",
            "A0 B0 A1 C0"),
        ("- {call: A, id: s}\n- {stop: {of: s, is: A0}}\n- {call: B}\n- {call: C}", "A0"),
        ("- {loop: 2, do: [{loop: 2, do: [{call: A, id: s}, {stop: always}]}, {call: B}]}\n- {call: C}",
            "A0 B0 A1 B1 C0"),
        ("- {loop: 3, do: [{call: A, id: s}, {if: {of: s, is: A1}, do: [{call: B}, {stop: always}]}]}\n- "
            "{call: C}", "A0 A1 B0 C0"),
        ("- {loop: 2, do: [{call: A, id: s}, {call: B, id: b, unless: {of: b, is: B0}}, {call: C}]}",
            "A0 B0 C0 A1 C1"),
        ("- {parallel: [{call: A, id: s}, [{call: B}, {call: C}]]}", "A0 B0 C0"),
        ("- {parallel: [[{call: A, id: s}, {call: A}], [{call: B}, {call: B}]]}\n- {call: C}",
            "A0 B0 A1 B1 C0"),
        ("- {parallel: [{call: A, id: s}, {parallel: [[{call: B}, {call: B}], {call: C}]}]}", "A0 B0 C0 B1"),
        ("- {parallel: [{vote: A, n: 2, id: s}, [{call: B}, {call: C}]]}", "A0 A1 B0 C0"),
        ("- {parallel: [{loop: 2, do: [{call: A, id: s}, {stop: {of: s, is: A0}}]}, [{call: B}, {call: C}]]}",
            "A0 B0 C0"),
    ],
)  # fmt: skip
async def test_agents_are_called_in_the_order_of_the_steps(
    make_team: Play, steps: str, expected: str
) -> None:
    agents = "".join(line for line in AGENTS.splitlines(True) if f": {line[2]}" in steps)
    assert spoken(await play(make_team, team(steps, agents=agents))) == expected.split()


async def test_calls_read_the_replies_before_them_but_those_of_other_branches(make_team: Play) -> None:
    steps = (
        "- {call: A, id: a}\n- {parallel: [[{call: B, id: b}, {call: B}], [{call: C, id: c}, {call: C}]]}\n"
        "- {call: A}\n- {call: A, sees: [b, c]}\n- {call: A, sees: [], id: s}"
    )
    result = await play(make_team, team(steps))
    assert spoken(result) == ["A0", "B0", "C0", "B1", "C1", "A1", "A2", "A3"]
    assert read(result) == {
        "A0": "", "B0": "A: A0", "C0": "A: A0", "B1": "A: A0 B: B0", "C1": "A: A0 C: C0",
        "A1": "A: A0 B: B0 C: C0 B: B1 C: C1", "A2": "B: B0 C: C0", "A3": "",
    }  # fmt: skip


async def test_a_judge_of_a_vote_reads_its_candidates(make_team: Play) -> None:
    steps = "- {call: C, id: c}\n- {vote: A, n: 2, sees: [], best: B, id: s}"
    result = await play(make_team, team(steps))
    assert read(result) == {"C0": "", "A0": "", "A1": "", "B0": "A: A0 A: A1"}


@pytest.mark.parametrize(
    ("answers", "judge", "action"),
    [
        ("7 8 7", None, "7"), ("8 7 7", None, "7"), ("8 7", None, "8"), ("x x 7", None, "7"), ("x y", None, ""
            ),
        ("8 7 7", "1", "8"), ("8 7 7", "8", "8"), ("8 7 7", "9", "7"), ("8 7 7", "0", "7"),
        ("8 7 7", "no", "7"), ("8 x 7", "2", ""),
    ],
)  # fmt: skip
def test_a_vote_counts_equal_valid_actions_and_the_first_wins_a_tie(
    answers: str, judge: str | None, action: str
) -> None:
    candidates = [
        Projection(f" {word} " if word.isdigit() else "", word.isdigit(), {"n": i})
        for i, word in enumerate(answers.split())
    ]
    choice = None if judge is None else Projection(judge, judge != "no")
    winner = elect(candidates, choice)
    assert winner.action.strip() == action
    same = sum(c.valid and c.action.strip() == action for c in candidates)
    assert winner.fields["votes"] == same and winner.fields["share"] == same / len(candidates)
    assert winner.fields["n"] == [c.action.strip() for c in candidates].index(action)


async def test_a_vote_is_the_action_of_the_team(make_team: Play) -> None:
    text = team("- {vote: A, n: 3, id: s}", agents="  A: {prompt: '{env_prompt}', answer: boxed}\n")
    result = await play(make_team, text, replies={"A": ["\\boxed{8}", "\\boxed{ 7}", "\\boxed{7 }"]})
    assert result.episodes[0].team_reward == 1.0
    assert len({s.request.seed for s in result.episodes[0].samples}) == 3


async def test_a_vote_of_steps_leaves_out_those_that_have_not_run(make_team: Play) -> None:
    steps = (
        "- {call: A, id: a}\n- {call: A, id: b, unless: {of: a, is: A0}}\n- {call: B, id: c}\n- {call: C, "
        "id: d}\n"
        "- {vote: [b, c, d], id: s}"
    )
    replies = agents_of(team(steps)) | {"B": lambda *_: "C0"}
    result = await play(make_team, team(steps), replies=replies)
    assert result.episodes[0].answer == "C0"


async def test_a_default_is_returned_for_a_step_that_has_not_run(make_team: Play) -> None:
    steps = "- {call: A, id: a}\n- {call: B, id: s, unless: {of: a, field: valid}}"
    agents = "".join(AGENTS.splitlines(True)[:2])
    result = await play(make_team, team(steps, "{of: s, default: none}", agents))
    assert spoken(result) == ["A0"] and result.episodes[0].answer == "none"


@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        ("{of: a, is: '7'}", True), ("{of: a, is: 7}", True), ("{of: a, is: 7.0}", True), ("{of: a, is: true}"
            , False),
        ("{of: a, in: [6, 7]}", True), ("{of: a, below: 7}", False), ("{of: a, below: 7.5}", True),
        ("{of: a, above: 6}", True), ("{of: a, field: valid}", True), ("{of: a, field: valid, is: true}", True
            ),
        ("{of: a, field: valid, is: 1}", False), ("{of: later, is: 7}", False), ("{observation: nothing}",
            False),
        ("{observation: nothing, is: null}", False), ("{observation: anchor, is: here}", True),
        ("{observation: moves, above: 2}", True), ("{observation: moves, is: '3'}", False),
        ("{observation: over}", False), ("{observation: over, is: false}", True),
    ],
)  # fmt: skip
async def test_conditions(
    make_team: Play, condition: str, holds: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = {"anchor": "here", "moves": 3, "over": False}
    reset = MathEnv.reset
    monkeypatch.setattr(MathEnv, "reset", lambda env, task: replace(reset(env, task), info=info))
    steps = (
        f"- {{call: A, id: a}}\n- if: {condition}\n  do: [{{call: B}}]\n  else: [{{call: C}}]\n"
        "- {call: A, id: later}"
    )
    result = await play(
        make_team, team(steps, "later"), replies=agents_of(team(steps, "later")) | {"A": lambda *_: "7"}
    )
    assert spoken(result)[1] == ("B0" if holds else "C0")


async def test_a_field_that_a_class_does_not_have_costs_the_episode_and_names_its_fields(
    make_team: Play,
) -> None:
    text = (
        "team: 1\nagents:\n  A: {class: math/Verifier Agent, options: {prompt_style: short}}\ndo:\n- {call: "
        "A, id: s}\n"
        "- {stop: {of: s, field: enough}}\nreturn: s\n"
    )
    result = await play(make_team, text, replies={"A": ["x"]}, max_failure_rate=1.0)
    assert "reads 'enough' of the step 's', which has: action, valid, approved, parsed" in str(
        result.episodes[0].failure
    )


BRANCHES = (
    "- parallel:\n"
    "  - [{call: A}, {loop: 3, do: [{call: A, id: a}, {stop: {of: a, in: ['1', '2']}}]}, {call: B}]\n"
    "  - - {vote: B, n: 3, id: b, best: C}\n    - {call: C, unless: {of: b, below: 3}}\n"
    "  - parallel: [[{call: C}, {call: C}], [{call: A}, {call: B}, {call: A}]]\n"
    "- {call: A, id: s}"
)


@pytest.mark.parametrize("sampling", ["parallel", "tree"])
async def test_numbers_seeds_and_prompts_do_not_depend_on_which_reply_comes_first(
    make_team: Play, sampling: str
) -> None:
    def script(prompt: str, request: Any) -> str:
        return str(random.Random(request.seed).randrange(6))

    async def played(order: int) -> Any:
        rng = random.Random(order)

        async def delay(request: Any) -> None:
            await asyncio.sleep(rng.choice([0, 0.001, 0.004]) if order else 0)

        tree = (
            {"tree": TreeConfig(k=2), "reward": RewardConfig(team_scope="call")} if sampling == "tree" else {}
        )
        collector = make_team(team(BRANCHES), dict.fromkeys("ABC", script), delay=delay, **tree)
        tasks = [Task(f"t{i}", f"What {i}?", "demo", "7") for i in range(6)]
        episodes = (await collector.collect(tasks, 2, step=3)).episodes
        assert not any(e.failure for e in episodes)
        return [
            [
                (
                    s.agent_id,
                    s.identity.call,
                    s.identity.candidate,
                    s.request.seed,
                    s.request.prompt_ids,
                    s.text,
                    s.identity.prior_replies,
                )
                for s in e.samples
            ]
            for e in episodes
        ]

    first = await played(0)
    assert {len(calls) for calls in first} != {len(first[0])}, "the branches differ in length"
    for order in (1, 2, 3):
        assert await played(order) == first


async def test_a_call_that_fails_in_a_branch_fails_the_episode_and_nothing_waits(make_team: Play) -> None:
    def fail(*_: Any) -> str:
        raise AgentSystemError("broken")

    steps = "- {parallel: [[{call: A, id: s}, {call: A}], [{call: B}, {call: B}], {vote: C, n: 2}]}"
    replies = agents_of(team(steps)) | {"B": fail}
    async with asyncio.timeout(20):
        result = await play(make_team, team(steps), replies=replies, max_failure_rate=1.0)
    assert "broken" in str(result.episodes[0].failure)


async def test_agents_act_in_the_environment_under_the_name_that_it_knows(make_team: Play) -> None:
    text = PAIR.replace("Solver Agent", "Careful").replace("answer: boxed", "answer: boxed, as: Solver Agent")
    text = text.replace("Verifier Agent", "Judge").replace(
        "{verdict: verify}", "{verdict: verify}, as: Verifier Agent"
    )
    replies = {"Careful": ["\\boxed{8}", "\\boxed{7}"], "Judge": ["<verify>reject</verify>"]}
    result = await make_team(text, replies, env_params={"verdict_reward": 0.5}).collect([TASK], 1, step=0)
    (episode,) = result.episodes
    assert [s.agent_id for s in episode.samples] == ["Careful", "Judge", "Careful"]
    assert [s.rewards.local_reward for s in episode.samples] == [0.0, 0.5, 0.0]
    assert (
        episode.info["solver/mended"] == 1.0
        and "Careful: \\boxed{8}" in episode.samples[1].request.prompt_text
    )


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ("- {loop: 2, do: [{loop: 3, do: [{call: A, id: s}]}, {call: B, unless: {loop: last}}, "
            "{call: C, unless: {loop: first}}]}", "A0 A1 A2 B0 A3 A4 A5 C0"),
        ("- {loop: 2, do: [{parallel: [{loop: 1, do: [{call: A, id: s}]}, {call: B, unless: {loop: last}}]}, "
            "{call: C, unless: {loop: first}}]}", "A0 B0 A1 C0"),
        ("- {loop: 2, do: [{call: A, id: s}, {parallel: [{call: B, unless: {loop: first}}, "
            "{call: C, unless: {loop: last}}]}]}", "A0 C0 A1 B0"),
        ("- {loop: 2, do: [{call: A, id: s}, {parallel: [{parallel: [{call: B, unless: {loop: first}}, "
            "{call: B}]}, {call: C, unless: {loop: last}}]}]}", "A0 B0 C0 A1 B1 B2"),
        ("- {loop: 2, do: [{parallel: [{call: A, id: s}, {call: B, id: b}]}]}\n- {call: C, unless: {of: s, "
            "is: A0}}", "A0 B0 A1 B1 C0"),
        ("- {loop: 2, do: [{parallel: [{call: B, id: b}, {call: A, id: s}]}]}\n- {call: C, unless: {of: b, "
            "is: B0}}", "B0 A0 B1 A1 C0"),
        ("- {loop: 2, do: [{parallel: [{parallel: [{call: A, id: s}, {call: B}]}, {call: B, id: b}]}]}\n"
            "- {call: C, unless: {of: s, is: A0}}", "A0 B0 B1 A1 B2 B3 C0"),
    ],
)  # fmt: skip
async def test_rounds_and_results_inside_loops_and_branches(
    make_team: Play, steps: str, expected: str
) -> None:
    assert spoken(await play(make_team, team(steps))) == expected.split()
