"""The step `spawn` and the tool `delegate` of a team file: what is called, read and returned, and
the calls that are counted.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
from typing import Any

import pytest

from agent_system import Task
from agent_system.errors import AgentSystemError
from agent_system.rollout import CollectResult
from agent_system.workflows.graph import Team
from tests.agent_system.workflows.graph.conftest import Play
from verl.trainer.config.reward import RewardConfig
from verl.trainer.config.run import TreeConfig

TASK = Task("t", "What?", "demo", "7")
AGENTS = """\
  Planner: {prompt: "Plan: {env_prompt}{team_context}"}
  Worker: {prompt: "Do: {task} for {env_prompt}{team_context}"}
"""


def team(steps: str, returned: str = "s", agents: str = AGENTS) -> str:
    return f"team: 1\nagents:\n{agents}do:\n{steps}\nreturn: {returned}\n"


SPAWN = "- {call: Planner, id: p}\n- {spawn: {of: p, agent: Worker, max: 3, depth: 2}, id: s}"


def task_of(prompt: str) -> str:
    return prompt.split("Do: ", 1)[1].split(" for ", 1)[0]


async def play(make_team: Play, text: str, script: Any, **more: Any) -> CollectResult:
    replies = dict.fromkeys(Team.parse(text).agents, script)
    return await make_team(text, replies, **{"max_failure_rate": 0.0, **more}).collect([TASK], 1, step=0)


def calls(result: CollectResult) -> list[tuple[str, int, str]]:
    (episode,) = result.episodes
    return [(s.agent_id, s.identity.depth, s.text) for s in episode.samples]


async def test_an_agent_is_called_for_each_line_and_its_actions_are_the_result(make_team: Play) -> None:
    def script(prompt: str, _: Any) -> str:
        if "Plan:" in prompt:
            return "done" if "Worker" in prompt else " ab \n\nc\nd\nleft out"
        task = task_of(prompt)
        return f"{task[0]}\n{task[1]}" if len(task) == 2 else f"{task}!"

    steps = SPAWN + "\n- {call: Planner, id: all}\n- {call: Planner, sees: [s], id: one}"
    result = await play(make_team, team(steps), script)
    assert calls(result) == [
        ("Planner", 0, " ab \n\nc\nd\nleft out"), ("Worker", 1, "a\nb"), ("Worker", 1, "c!"),
        ("Worker", 1, "d!"),
        ("Worker", 2, "a!"), ("Worker", 2, "b!"), ("Planner", 0, "done"), ("Planner", 0, "done"),
    ]  # fmt: skip
    assert result.episodes[0].answer == "a!\nb!\nc!\nd!"
    texts = [s.request.messages[0]["content"] for s in result.episodes[0].samples]
    plan = "Planner: ab \n\nc\nd\nleft out"
    assert [text.split("What?")[1].strip() for text in texts] == [
        "", *[plan] * 5, f"{plan}\n\nWorker: a!\nb!\nc!\nd!", "Worker: a!\nb!\nc!\nd!"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("plan", "condition", "holds"),
    [
        ("a\nb", "{of: s, field: children, is: 2}", True),
        ("a\nb\nc\nd\ne", "{of: s, field: left_out, is: 2}", True),
        ("a\nb", "{of: s, field: left_out, above: 0}", False),
        ("a\nb", "{of: s, field: valid}", True),
        ("a\nx", "{of: s, field: valid}", False),
        (" ", "{of: s, field: valid}", False),
        (" ", "{of: s, is: ''}", True),
        ("7", "{of: s, is: 7}", True),
        ("7\n8", '{of: s, is: "7\\n8"}', True),
    ],
)
async def test_conditions_on_a_spawn(make_team: Play, plan: str, condition: str, holds: bool) -> None:
    def script(prompt: str, _: Any) -> str:
        return plan if "Plan:" in prompt else f"<t>{task_of(prompt)}</t>" * ("Do: x" not in prompt)

    agents = AGENTS.replace("Worker: {prompt", "Worker: {answer: {tag: t}, prompt")
    steps = f"{SPAWN}\n- if: {condition}\n  do: [{{call: Planner}}]"
    (episode,) = (await play(make_team, team(steps, agents=agents), script)).episodes
    assert (episode.samples[-1].agent_id == "Planner" and len(episode.samples) > 1) is holds


async def test_a_spawn_of_a_step_that_has_not_run_calls_nobody(make_team: Play) -> None:
    steps = (
        "- {call: Planner, id: p, unless: {observation: nothing, is: 0}}\n"
        "- {call: Planner, id: q, unless: {of: p, field: valid}}\n"
        "- {spawn: {of: q, agent: Worker}, id: s}"
    )
    with pytest.raises(AgentSystemError, match="the step s may be left out"):
        Team.parse(team(steps))
    result = await play(make_team, team(steps, "{of: s, default: none}"), lambda *_: "a")
    assert [name for name, *_ in calls(result)] == ["Planner"] and result.episodes[0].answer == "none"


async def test_ten_thousand_lines_of_a_reply_are_four_children(make_team: Play) -> None:
    def script(prompt: str, _: Any) -> str:
        return "\n".join(map(str, range(10_000))) if "Plan:" in prompt else task_of(prompt)

    steps = "- {call: Planner, id: p}\n- {spawn: {of: p, agent: Worker}, id: s, sees: []}"
    result = await play(make_team, team(steps), script, max_tokens=100_000)
    assert result.episodes[0].answer == "0\n1\n2\n3"


BRANCHES = (
    "- {call: Planner, id: p}\n"
    "- parallel:\n"
    "  - [{spawn: {of: p, agent: Worker, depth: 3}, id: s}, {call: Planner}]\n"
    "  - [{call: Worker}, {vote: Worker, n: 2, id: v}, {spawn: {of: v, agent: Asker}}]"
)
ASKER = (
    '  Asker: {prompt: "Ask: {task}", tools: [{delegate: Asker, max: 3, depth: 3}, calculator], '
    "max_rounds: 3}\n"
)


@pytest.mark.parametrize("sampling", ["parallel", "tree"])
async def test_numbers_and_seeds_do_not_depend_on_which_reply_comes_first(
    make_team: Play, sampling: str
) -> None:
    text = team(BRANCHES, agents=AGENTS + ASKER)
    if sampling == "tree":
        text = text.replace(ASKER, "").replace("agent: Asker", "agent: Worker")

    def script(prompt: str, request: Any) -> str:
        draw = random.Random(request.seed)
        if "Ask:" in prompt and prompt.count("<tool_call>") < 3 and draw.random() < 0.7:
            arguments = {"name": "delegate", "arguments": {"task": str(draw.randrange(9))}}
            return f"<tool_call>{json.dumps(arguments)}</tool_call>" * draw.randrange(1, 4)
        return "\n".join(str(draw.randrange(6)) for _ in range(draw.randrange(1, 4)))

    async def played(order: int) -> Any:
        rng = random.Random(order)

        async def delay(request: Any) -> None:
            await asyncio.sleep(rng.choice([0, 0.001, 0.004]) if order else 0)

        more = (
            {"tree": TreeConfig(k=2), "reward": RewardConfig(team_scope="call")} if sampling == "tree" else {}
        )
        collector = make_team(text, dict.fromkeys(Team.parse(text).agents, script), delay=delay, **more)
        tasks = [Task(f"t{i}", f"What {i}?", "demo", "7") for i in range(6)]
        episodes = (await collector.collect(tasks, 2, step=3)).episodes
        assert not any(e.failure for e in episodes)
        return [
            [
                (
                    s.agent_id,
                    s.identity.call,
                    s.identity.candidate,
                    s.identity.depth,
                    s.request.seed,
                    s.request.prompt_ids,
                    s.identity.prior_replies,
                )
                for s in e.samples
            ]
            for e in episodes
        ]

    first = await played(0)
    assert {s[3] for calls in first for s in calls} == {0, 1, 2, 3}
    for order in (1, 2, 3):
        assert await played(order) == first


async def test_an_agent_of_a_file_delegates(make_team: Play) -> None:
    agents = (
        '  Boss: {prompt: "Boss: {env_prompt}", answer: boxed, '
        "tools: [calculator, {delegate: Finder, max: 2}]}\n"
        '  Finder: {prompt: "Do: {task} for {env_prompt}"}\n'
    )

    def script(prompt: str, _: Any) -> str:
        if "Boss:" not in prompt:
            return f"found {task_of(prompt)}"
        if "found gold" in prompt:
            return "\\boxed{7}"
        return '<tool_call>{"name": "delegate", "arguments": {"task": "gold"}}</tool_call>'

    result = await play(make_team, team("- {call: Boss, id: s}", agents=agents), script)
    assert [(s.agent_id, s.identity.depth, s.rewards.team_reward) for s in result.episodes[0].samples] == [
        ("Boss", 0, 1.0), ("Finder", 1, 1.0), ("Boss", 0, 1.0)
    ]  # fmt: skip
    assert result.episodes[0].answer == "7"


@pytest.mark.parametrize(
    ("steps", "count"),
    [
        ("- {call: Planner, id: p}\n- {spawn: {of: p, agent: Worker}, id: s}", 1 + 4),
        ("- {call: Planner, id: p}\n- {spawn: {of: p, agent: Worker, max: 3, depth: 3}, id: s}",
            1 + 3 + 9 + 27),
        ("- {call: Planner, id: p}\n- {loop: 2, do: [{spawn: {of: p, agent: Worker, max: 1}, id: s}]}",
            1 + 2),
        ("- {call: Planner, id: p}\n- {spawn: {of: p, agent: Worker, max: 2}, id: s}\n- {call: Asker}",
            1 + 2 + 1 + 3 * (1 + 3 * (1 + 3))),
        ("- {call: Planner, id: p}\n- {call: Worker}\n- {spawn: {of: p, agent: Asker, max: 2}, id: s}",
            1 + 1 + 2),
        ("- {call: Planner, id: p}\n- {call: Worker}\n"
            "- {spawn: {of: p, agent: Asker, max: 2, depth: 2}, id: s}",
            1 + 1 + 2 * (1 + 3) + 4),
        ("- {call: Planner, id: p}\n- {call: Worker}\n"
            "- {spawn: {of: p, agent: Asker, max: 2, depth: 3}, id: s}",
            1 + 1 + 2 * (1 + 3 * (1 + 3)) + 4 * (1 + 3) + 8),
        ("- {call: Planner, id: p}\n- {call: Worker}\n"
            "- {spawn: {of: p, agent: Asker, max: 1, depth: 4}, id: s}",
            1 + 1 + (1 + 3 * (1 + 3)) + (1 + 3) + 1 + 1),
        ("- {call: Planner, id: s}\n- {call: Worker}\n- {vote: Asker, n: 2, best: Asker}",
            1 + 1 + 3 * (1 + 3 * (1 + 3 * (1 + 3)))),
    ],
)  # fmt: skip
def test_the_largest_number_of_calls_counts_children(steps: str, count: int) -> None:
    agents = AGENTS + ("" if "Asker" not in steps else ASKER)
    assert Team.parse(team(steps, agents=agents)).calls == count


@pytest.mark.parametrize(("outer", "inner", "count"), [(1, 8, 1 + 2), (2, 1, 1 + 2), (2, 8, 1 + 2 + 2 * 3)])
def test_the_smaller_depth_of_tools_that_call_each_other_counts(outer: int, inner: int, count: int) -> None:
    agents = AGENTS + (
        f'  Boss: {{prompt: "Boss: {{task}}", tools: [{{delegate: Asker, max: 2, depth: {outer}}}]}}\n'
        f'  Asker: {{prompt: "Ask: {{task}}", tools: [{{delegate: Worker, max: 3, depth: {inner}}}]}}\n'
    )
    steps = "- {call: Planner}\n- {call: Worker}\n- {call: Boss, id: s}"
    assert Team.parse(team(steps, agents=agents)).calls == 2 + count


def test_names_and_defaults_of_a_spawn_do_not_count_in_the_key() -> None:
    agents = AGENTS.replace('context}"}', 'context}", quote: {entry: "{text}"}}') + ASKER.replace(
        "prompt", 'quote: {entry: "{text}"}, prompt'
    )
    text = team(SPAWN + "\n- {spawn: {of: s, agent: Asker}}", agents=agents)
    renamed = re.sub(r"\bp\b(?=[,}])", "plan", text)
    assert renamed != text and Team.parse(renamed).key() == Team.parse(text).key()
    said = text.replace("agent: Asker}", "agent: Asker, max: 4, depth: 1}")
    assert said != text and Team.parse(said).key() == Team.parse(text).key()
    keys = {Team.parse(text).key()}
    for old, new in [("max: 3, depth: 2}", "max: 2, depth: 2}"), ("depth: 2}", "depth: 1}"),
        ("max: 3, depth: 3}", "max: 3, depth: 2}"), ("delegate: Asker", "delegate: Worker"),
        ("of: s, agent: Asker", "of: p, agent: Asker")]:  # fmt: skip
        assert old in text
        keys.add(Team.parse(text.replace(old, new)).key())
    assert len(keys) == 6


def test_a_saved_team_with_children_is_the_same_team(tmp_path: Any) -> None:
    team_spec = Team.parse(team(SPAWN + "\n- {spawn: {of: s, agent: Asker}}", agents=AGENTS + ASKER))
    for suffix in ("yaml", "json"):
        team_spec.save(tmp_path / f"copy.{suffix}")
        copy = Team.load(tmp_path / f"copy.{suffix}")
        assert (copy.key(), copy.calls) == (team_spec.key(), team_spec.calls)


def test_the_flow_chart_shows_a_spawn() -> None:
    chart = Team.parse(team(SPAWN)).mermaid()
    assert '[["spawn: up to 3 x Worker, lines of p, depth 2"]]' in chart
