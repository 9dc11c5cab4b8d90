"""Sub-agents: order and limits of children, their depth and credit, and waves that no order changes."""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import pytest

from agent_system import (
    AgentSystemError,
    BaseAgent,
    BaseEnv,
    BaseOrchestra,
    Observation,
    Outcome,
    Projection,
    SummaryMemory,
    Task,
    Turn,
    boxed_answer,
)
from agent_system.children import LONGEST_TASK, Child, spawn, task_lines
from agent_system.rollout.episode_store import load_episodes, save_episodes
from agent_system.tools import ToolAgent, calculator, delegate
from tests.agent_system.rollout.conftest import OneTurn
from tests.waiting import settle
from verl.protocol.generate import RolloutError
from verl.trainer.config.reward import RewardConfig
from verl.trainer.config.run import TreeConfig
from verl.trainer.ppo.credit.advantage import compute_advantage, group_keys

TASK = Task("a", "Count.", "demo", "4")


class Planner(BaseAgent):
    prompt = "Plan: {env_prompt} {team_context}"


class Worker(BaseAgent):
    prompt = "Do: {task} in {env_prompt} {team_context}"


class Team(BaseOrchestra):
    """Plays what the test says."""

    agents = ("Planner", "Worker")

    def __init__(self, play: Callable[[Turn], Any]) -> None:
        super().__init__()
        self.play = play

    async def run(self, turn: Turn) -> Any:
        return await self.play(turn)


class Acting(OneTurn):
    """Pays the Worker for each call, and knows forks."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.acts: list[str] = []

    def act(self, agent_id: str, action: str) -> Outcome:
        self.acts.append(action)
        return Outcome(local=0.5 if agent_id == "Worker" else None)

    def fork(self) -> Acting:
        copy = type(self)(self.config, seed=self.seed)
        copy.task, copy.acts = self.task, list(self.acts)
        return copy


AGENTS = {"Planner": Planner("Planner"), "Worker": Worker("Worker")}


@pytest.fixture
def play(make_collector: Callable[..., Any], scripted: Callable[..., Any]) -> Callable[..., Any]:
    """Play one episode of a function of the turn and return the result of the collection."""

    def go(work: Callable[[Turn], Any], script: Any, **more: Any) -> Any:
        engine = scripted(script, **({"delay": more.pop("delay")} if "delay" in more else {}))
        options = {"agents": AGENTS, "env": OneTurn, "max_failure_rate": 0.0} | more
        tasks, n = options.pop("tasks", [TASK]), options.pop("n", 1)
        collector = make_collector(engine, orchestra=options.pop("orchestra", None) or Team(work), **options)
        return asyncio.run(collector.collect(tasks, n, step=1))

    return go


def said(result: Any) -> list[tuple[str, int, int, str]]:
    (episode,) = result.episodes
    return [(s.agent_id, s.identity.call, s.identity.depth, s.text) for s in episode.samples]


def task_of(prompt: str) -> str:
    return prompt.split("Do: ", 1)[1].split(" in ", 1)[0]


def test_children_reply_in_the_order_of_their_tasks_and_know_their_depth(play: Callable[..., Any]) -> None:
    async def work(turn: Turn) -> str:
        plan = await turn.act("Planner")
        replies = await spawn(turn, "Worker", task_lines(plan.action), most=3)
        assert [entry.action for entry in turn.entries] == [plan.action, "[a]\n[b]\n[c]"]
        return " ".join(reply.action for reply in replies)

    delays = {"a": 0.003, "b": 0.0, "c": 0.001}

    async def delay(request: Any) -> None:
        await asyncio.sleep(delays.get(script.last, 0.0))

    def script(prompt: str, _: Any) -> str:
        return "a\nb\nc\nd" if "Plan:" in prompt else f"[{task_of(prompt)}]"

    script.last = ""  # type: ignore[attr-defined]
    result = play(work, script, delay=delay)
    assert result.episodes[0].answer == "[a] [b] [c]"
    assert said(result) == [
        ("Planner", 0, 0, "a\nb\nc\nd"), ("Worker", 1, 1, "[a]"), ("Worker", 2, 1, "[b]"),
        ("Worker", 3, 1, "[c]"),
    ]  # fmt: skip
    prompts = [s.request.messages[0]["content"] for s in result.episodes[0].samples[1:]]
    # what came before the spawn, and nothing of each other
    assert prompts == [f"Do: {t} in Count. Planner: a\nb\nc\nd" for t in "abc"]
    assert [s.identity.anchor for s in result.episodes[0].samples] == [
        "Count.",
        *(f"Count.\n{t}" for t in "abc"),
    ]
    assert len({s.request.seed for s in result.episodes[0].samples}) == 4
    assert list(result.batch.non_tensor_batch["depth"]) == [0, 1, 1, 1]


def test_lines_of_a_reply_above_the_limit_are_tasks_of_its_own(play: Callable[..., Any]) -> None:
    async def work(turn: Turn) -> str:
        replies = await spawn(turn, "Worker", ["ab", "c"], most=2, depth=2)
        assert [reply.valid for reply in replies] == [True, True]
        assert [entry.action for entry in turn.entries] == ["a\nb\n!\nx\nc!"]
        return replies[0].action

    def script(prompt: str, _: Any) -> str:
        task = task_of(prompt)
        # at the limit two lines are an answer
        return {"ab": "a\nb\nleft out", "a": "a\nb\n!", "b": "x"}.get(task, f"{task}!")

    result = play(work, script)
    assert said(result) == [
        ("Worker", 0, 1, "a\nb\nleft out"), ("Worker", 1, 1, "c!"), ("Worker", 2, 2, "a\nb\n!"),
        ("Worker", 3, 2, "x"),
    ]  # fmt: skip
    assert result.episodes[0].answer == "a\nb\n!\nx"


def test_a_function_makes_the_calls_of_a_child_and_may_spawn_again(play: Callable[..., Any]) -> None:
    async def halve(child: Child, task: str, end: str) -> str:
        reply = await child.act("Worker", task=task)
        if child.may_spawn and len(task) > 1:
            parts = await spawn(child, halve, [task[: len(task) // 2], task[len(task) // 2 :]], end=end)
            return str((await child.act("Worker", task="+".join(parts))).action)
        return reply.action + end

    async def work(turn: Turn) -> str:
        assert turn.entries == []
        return "|".join(await spawn(turn, halve, ["abcd", "e"], depth=2, end="."))

    result = play(work, lambda prompt, _: task_of(prompt).upper())
    assert result.episodes[0].answer == "AB.+CD.|E."
    assert said(result) == [
        ("Worker", 0, 1, "ABCD"), ("Worker", 1, 1, "E"), ("Worker", 2, 2, "AB"), ("Worker", 3, 2, "CD"),
        ("Worker", 4, 1, "AB.+CD."),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"tasks": "one text"}, "spawn needs a list of tasks, found one text"),
        ({"most": 0}, "most from 1 to 64 and depth from 1 to 8, found most=0"),
        ({"most": 65}, "found most=65"),
        ({"depth": 9}, "and depth=9"),
    ],
)
def test_bad_arguments_of_spawn_are_one_line(
    play: Callable[..., Any], arguments: dict[str, Any], message: str
) -> None:
    async def work(turn: Turn) -> None:
        await spawn(turn, "Worker", **{"tasks": ["a"], **arguments})

    result = play(work, ["x"], max_failure_rate=1.0)
    assert message in result.episodes[0].failure and "\n" not in result.episodes[0].failure


def test_a_child_at_the_limit_cannot_spawn(play: Callable[..., Any]) -> None:
    async def deeper(child: Child, task: str) -> None:
        assert not child.may_spawn
        await spawn(child, "Worker", ["a"])

    async def work(turn: Turn) -> None:
        await spawn(turn, deeper, ["a"])

    result = play(work, ["x"], max_failure_rate=1.0)
    assert "a child at depth 1, the limit, cannot spawn; look at may_spawn" in result.episodes[0].failure


def test_ten_thousand_lines_and_a_task_that_no_prompt_can_show_cost_no_episode(
    play: Callable[..., Any],
) -> None:
    async def work(turn: Turn) -> str:
        tasks = task_lines("\n".join([*map(str, range(10_000)), "x" * 1_000_000]))
        replies = await spawn(turn, "Worker", ["y" * LONGEST_TASK, *tasks], most=3)
        assert [(reply.action, reply.valid) for reply in replies] == [("", False), ("0", True), ("1", True)]
        return "done"

    result = play(work, lambda prompt, _: task_of(prompt), max_prompt_length=500)
    assert [s.text for s in result.episodes[0].samples] == ["0", "1"]
    assert result.metrics["env/spawn/too_long"] == 1.0
    assert [s.rewards.reward for s in result.episodes[0].samples] == [0.0, 0.0]


class ThreeTurns(OneTurn):
    def step(self, action: str) -> Outcome:
        return replace(super().step(action), done=False)


@pytest.mark.parametrize("long", [(2, 0, 1), (0, 1, 0), (0, 0, 0)])
def test_prompts_that_are_too_long_add_up_over_turns(play: Callable[..., Any], long: tuple[int, ...]) -> None:
    async def work(turn: Turn) -> str:
        if turn.step < 3:
            await spawn(turn, "Worker", ["y" * LONGEST_TASK] * long[turn.step - 1] + ["x"])
        else:
            await spawn(turn, "Worker", ["y" * LONGEST_TASK] * long[2])
        return "4"

    result = play(work, lambda *_: "4", env=ThreeTurns, max_prompt_length=500, max_steps=3)
    assert result.episodes[0].turns == 3
    assert result.metrics["env/spawn/too_long"] == sum(long)


class Informed(OneTurn):
    def reset(self, task: Task) -> Observation:
        return replace(super().reset(task), info={"task": "of the environment"})


def test_outside_of_children_the_task_is_the_observation(play: Callable[..., Any]) -> None:
    async def work(turn: Turn) -> str:
        return str((await turn.act("Worker")).action)

    (sample,) = play(work, lambda *_: "4", env=Informed).episodes[0].samples
    assert sample.request.messages[0]["content"].strip() == "Do: Count. in Count."


class Asked(BaseAgent):
    prompt = "Do: {question} in {env_prompt} {team_context}"


def test_the_task_of_a_child_is_in_its_anchor_by_whatever_name(play: Callable[..., Any]) -> None:
    async def work(child: Child, task: str) -> str:
        await child.act("Worker", question=task)
        return str((await child.act("Worker", question=task, task="second " + task)).action)

    async def run(turn: Turn) -> str:
        return "".join(await spawn(turn, work, ["a", "b"]))

    result = play(run, lambda *_: "4", agents={**AGENTS, "Worker": Asked("Worker")})
    anchors = [s.identity.anchor for s in result.episodes[0].samples]
    assert anchors == [f"Count.\n{task}" for task in ("a", "b", "second a", "second b")]


class Remembering(Worker):
    memory_class = SummaryMemory


def test_the_task_of_a_child_is_in_the_anchor_of_its_summary(play: Callable[..., Any]) -> None:
    async def work(turn: Turn) -> str:
        return str((await spawn(turn, "Worker", [f"x{turn.step}"]))[0].action)

    agents = {**AGENTS, "Worker": Remembering("Worker")}
    result = play(work, lambda *_: "4", agents=agents, env=ThreeTurns, max_steps=3, history_length=1)
    anchors = {s.identity.anchor for s in result.episodes[0].samples if s.identity.summary}
    assert anchors == {"Count.\nx2\nsummary", "Count.\nx3\nsummary"}


async def two_calls(child: Child, task: str) -> str:
    replies = await asyncio.gather(child.act("Worker", task=task), child.act("Worker", task=task))
    return "".join(reply.action for reply in replies)


async def two_spawns(child: Child, task: str) -> str:
    return str(await asyncio.gather(spawn(child, "Worker", [task]), spawn(child, "Worker", [task])))


async def call_and_spawn(child: Child, task: str) -> str:
    return str(await asyncio.gather(child.act("Worker", task=task), spawn(child, "Worker", [task])))


@pytest.mark.parametrize("tasks", [["x"], ["x", "y"]])
@pytest.mark.parametrize("calls", [two_calls, two_spawns, call_and_spawn])
def test_a_child_that_makes_two_calls_at_once_is_refused_in_one_line(
    play: Callable[..., Any], calls: Callable[..., Any], tasks: list[str]
) -> None:
    async def work(turn: Turn) -> str:
        return str(await spawn(turn, calls, tasks, depth=2))

    result = play(work, lambda *_: "4", max_failure_rate=1.0, episode_timeout_s=5.0)
    assert result.episodes[0].failure.startswith(
        "AgentSystemError: a child awaits its calls one by one; give calls at the same time to spawn ("
    )


async def side_by_side(turn: Turn) -> str:
    return str(await asyncio.gather(spawn(turn, "Worker", ["x"]), spawn(turn, "Worker", ["y"])))


async def around_its_child(turn: Turn) -> str:
    async def work(child: Child, task: str) -> str:
        return str(await spawn(child.turn, "Worker", [task]))

    return str(await spawn(turn, work, ["x"], depth=2))


@pytest.mark.parametrize("work", [side_by_side, around_its_child])
def test_a_second_spawn_of_a_turn_at_the_same_time_is_refused_in_one_line(
    play: Callable[..., Any], work: Callable[[Turn], Any]
) -> None:
    result = play(work, lambda *_: "4", max_failure_rate=1.0)
    assert result.episodes[0].failure.startswith(
        "AgentSystemError: a turn awaits its spawns one by one; a child spawns with itself as the parent ("
    )


def test_a_turn_spawns_again_after_a_spawn_that_failed(play: Callable[..., Any]) -> None:
    async def work(turn: Turn) -> str:
        with pytest.raises(AgentSystemError, match="no agent 'Wroker'"):
            await spawn(turn, "Wroker", ["x"])
        return str((await spawn(turn, "Worker", ["y"]))[0].action)

    assert play(work, lambda *_: "4").episodes[0].answer == "4"


async def tangled(turn: Turn) -> str:
    async def work(child: Child, task: str) -> str:
        reply = Projection("")
        for _ in range(1 + int(task) % 3):
            reply = await child.act("Worker", task=task)
        if child.may_spawn and int(task) % 2:
            return "".join(await spawn(child, work, [reply.action, task]))
        return str((await spawn(child, "Worker", [task, "1"]))[0].action) if child.may_spawn else "0"

    plan = await turn.act("Planner")
    await spawn(turn, work, list(plan.action), depth=3)
    return str((await turn.act("Planner")).action)


@pytest.mark.parametrize("sampling", ["parallel", "tree"])
def test_numbers_seeds_and_prompts_do_not_depend_on_which_reply_comes_first(
    play: Callable[..., Any], sampling: str
) -> None:
    def script(prompt: str, request: Any) -> str:
        draw = random.Random(request.seed)
        return "".join(str(draw.randrange(6)) for _ in range(4 if "Plan:" in prompt else 1))

    def played(order: int) -> Any:
        rng = random.Random(order)

        async def delay(request: Any) -> None:
            await asyncio.sleep(rng.choice([0, 0.001, 0.004]) if order else 0)

        tree = (
            {"tree": TreeConfig(k=2), "reward": RewardConfig(team_scope="call")} if sampling == "tree" else {}
        )
        tasks = [Task(f"t{i}", f"What {i}?", "demo", "7") for i in range(4)]
        result = play(tangled, script, delay=delay, tasks=tasks, n=2, env=Acting, **tree)
        return [
            [(s.agent_id, s.identity.call, s.identity.depth, s.identity.candidate, s.request.seed,
              s.request.prompt_ids, s.text, s.identity.prior_replies)
                for s in e.samples]
            for e in result.episodes
        ]  # fmt: skip

    first = played(0)
    assert {depth for calls in first for _, _, depth, *_ in calls} == {0, 1, 2, 3}
    for order in (1, 2, 3):
        assert played(order) == first


def test_a_call_that_fails_in_a_child_fails_the_episode_and_nothing_waits(play: Callable[..., Any]) -> None:
    def script(prompt: str, _: Any) -> str:
        if "Do: 2" in prompt:
            raise AgentSystemError("broken")
        return "1235" if "Plan:" in prompt else "1"

    result = play(tangled, script, max_failure_rate=1.0)
    assert "broken" in result.episodes[0].failure


async def advised(turn: Turn) -> str:
    plan = await turn.act("Planner")
    return "\n".join(r.action for r in await spawn(turn, "Worker", task_lines(plan.action), depth=2))


def test_children_share_the_rewards_of_the_episode_and_groups_may_be_by_depth(
    play: Callable[..., Any],
) -> None:
    """Two episodes of a task, one of which is right: advantages are over calls of one depth."""

    def script(prompt: str, request: Any) -> str:
        if "Plan:" in prompt:
            return "x\ny"
        return {"x": "p\nq", "y": "", "p": "", "q": "4"}[task_of(prompt)]

    def second(prompt: str, request: Any) -> str:
        return "one\ntwo" if "Plan:" in prompt else "5"

    def either(prompt: str, request: Any) -> str:
        index = int(request.request_id.split("#")[1].split("/")[0])
        return (script if index == 0 else second)(prompt, request)

    async def stripped(turn: Turn) -> str:
        return (await advised(turn)).strip()

    result = play(stripped, either, n=2, env=Acting)
    batch = result.batch
    columns = batch.non_tensor_batch
    assert [list(columns[name]) for name in ("traj_uid", "agent_id", "depth")] == [
        ["step1/a/0#0"] * 5 + ["step1/a/0#1"] * 3,
        ["Planner", *["Worker"] * 4, "Planner", *["Worker"] * 2],
        [0, 1, 1, 2, 2, 0, 1, 1],
    ]
    # the team's reward is right in the first episode alone, and every Worker has its local reward
    assert list(columns["reward"]) == [1.0, *[1.5] * 4, 0.0, 0.5, 0.5]
    groups = group_keys(batch, ["uid", "agent_id", "depth"])
    assert [int(g) for g in groups] == [int(groups[0]), *[int(groups[1])] * 2, *[int(groups[3])] * 2,
        int(groups[0]), *[int(groups[1])] * 2]  # fmt: skip
    assert len(set(groups.tolist())) == 3
    advantages = by_group(batch, ["uid", "agent_id", "depth"])
    # at depth 2 only the right episode has calls: nothing to learn; at 0 and 1 the right one is better
    assert np.sign(advantages).tolist() == [1, 1, 1, 0, 0, -1, -1, -1]
    alone = by_group(batch, ["uid", "agent_id"])
    # without the depth those of depth 2 count as Workers of the right episode
    assert np.sign(alone).tolist() == [1, 1, 1, 1, 1, -1, -1, -1] and abs(alone[6]) > abs(advantages[6])


def by_group(batch: Any, fields: Sequence[str]) -> Any:
    from verl.trainer.config import AlgorithmConfig

    rewards = np.array(batch.non_tensor_batch["reward"], dtype=float)
    mask = batch.batch["response_mask"].float()
    scores = mask.clone() * 0
    scores[:, 0] = mask.new_tensor(rewards)
    batch.batch["token_level_rewards"] = scores
    config = AlgorithmConfig(group_by=list(fields), norm_adv_by_std_in_grpo=False)
    compute_advantage(batch, "grpo", config=config)
    return batch.batch["advantages"][:, 0].numpy().round(6)


def test_trajectories_and_checkpoints_keep_the_depth(play: Callable[..., Any], tmp_path: Any) -> None:
    result = play(advised, lambda prompt, _: "x\ny" if "Plan:" in prompt else "4")
    (episode,) = result.episodes
    calls = json.loads(json.dumps(episode.to_json()))["calls"]
    assert [call.get("depth", 0) for call in calls] == [0, 1, 1]
    save_episodes(result.episodes, tmp_path)
    assert [s.identity.depth for s in load_episodes(tmp_path)[0].samples] == [0, 1, 1]


def test_children_are_candidates_of_a_tree_too(play: Callable[..., Any]) -> None:
    def script(prompt: str, request: Any) -> str:
        return "x\ny" if "Plan:" in prompt else str(random.Random(request.seed).randrange(9))

    result = play(advised, script, env=Acting, tree=TreeConfig(k=2), reward=RewardConfig(team_scope="call"))
    samples = result.episodes[0].samples
    assert [(s.identity.call, s.identity.candidate, s.identity.depth) for s in samples] == [
        (0, 0, 0), (0, 1, 0), (1, 0, 1), (1, 1, 1), (2, 0, 1), (2, 1, 1)
    ]  # fmt: skip


def called(*tasks: str) -> str:
    return "".join(
        f"<tool_call>{json.dumps({'name': 'delegate', 'arguments': {'task': task}})}</tool_call>"
        for task in tasks
    )


class Boss(ToolAgent):
    prompt = "Boss: {task}"
    projection = boxed_answer
    tools = (delegate("Boss", most=3, depth=2), calculator)
    max_rounds = 6


class Head(BaseOrchestra):
    agents = ("Boss",)

    async def run(self, turn: Turn) -> str:
        reply = await turn.act("Boss")
        assert [entry.action for entry in turn.entries] == [reply.action]
        return reply.action


BOSS = {"Boss": Boss("Boss")}


def results_in(prompt: str) -> list[str]:
    return [part.split("\n</tool_response>")[0] for part in prompt.split("<tool_response>\n")[1:]]


def boss(prompt: str, _: Any) -> str:
    """Delegates halves of a text until they have one letter."""
    task = prompt.split("Boss: ")[1].split("<|im_end|>")[0]
    if results := results_in(prompt):
        return f"so \\boxed{{{'+'.join(results)}}}"
    middle = len(task) // 2
    return called(task[:middle], task[middle:]) if middle else f"\\boxed{{{task}!}}"


def head(play: Callable[..., Any], script: Any, text: str = "abc", **more: Any) -> Any:
    options = {"max_prompt_length": 8000, "max_tokens": 8000, "agents": BOSS} | more
    options |= {"orchestra": more.get("orchestra") or Head(), "tasks": [Task("a", text, "demo", "4")]}
    return play(advised, script, **options)


def test_an_agent_delegates_to_another_call_of_the_episode(play: Callable[..., Any]) -> None:
    result = head(play, boss)
    assert result.episodes[0].answer == "a!+b!+c!"
    rows = [
        (s.identity.call, s.identity.depth, s.identity.final_call, s.tools.round, s.action)
        for s in result.episodes[0].samples
    ]
    assert rows == [
        (0, 0, 6, 0, ""),
        (1, 1, None, 0, "a!"), (2, 1, 5, 0, ""),
        (3, 2, None, 0, "b!"), (4, 2, None, 0, "c!"),
        (5, 1, None, 1, "b!+c!"),
        (6, 0, None, 1, "a!+b!+c!"),
    ]  # fmt: skip
    assert result.batch is not None and len(result.batch) == 7


@pytest.mark.slow
def test_limits_of_delegate_are_one_line_to_the_model(play: Callable[..., Any]) -> None:
    heard: list[str] = []

    def script(prompt: str, _: Any) -> str:
        if results := results_in(prompt):
            heard.extend(results)
            return "\\boxed{4}"
        if "Boss: abc" in prompt:
            return called("x" * 1_000_000, " ", "one", "two", "three", "four")
        if "Boss: two" in prompt:
            return called("deep")
        if "Boss: deep" in prompt:
            return called("too deep")
        return "no box" if "Boss: three" in prompt else "\\boxed{1}"

    result = head(play, script, max_prompt_length=4_000_000, max_tokens=4_000_000)
    assert result.episodes[0].answer == "4"
    assert heard == [
        "error: nothing can be delegated at depth 2, the limit; answer yourself",
        "4",
        "error: the task has 1,000,000 characters, more than 4,096",
        "error: the task is empty",
        "1",
        "4",
        "error: Boss gave no answer that could be read",
        "error: 3 tasks, the most, have been delegated; answer yourself",
    ]
    assert [s.identity.depth for s in result.episodes[0].samples if s.tools.errors] == [0, 2]


class Chief(ToolAgent):
    prompt = "Chief: {task}"
    tools = (delegate("Boss", depth=1),)


class Chain(BaseOrchestra):
    """A Chief, whose Boss may not delegate again, or a Boss that is a child of a spawn."""

    agents = ("Chief", "Boss")

    def __init__(self, spawns: bool) -> None:
        super().__init__()
        self.spawns = spawns

    async def run(self, turn: Turn) -> str:
        if self.spawns:
            return str((await spawn(turn, "Boss", ["ab"]))[0].action)
        return (await turn.act("Chief")).action


@pytest.mark.parametrize("spawns", [True, False])
def test_a_tool_of_a_child_has_the_depth_limit_around_it(play: Callable[..., Any], spawns: bool) -> None:
    heard: list[str] = []

    def script(prompt: str, _: Any) -> str:
        if results := results_in(prompt):
            heard.extend(results)
            return "\\boxed{4}"
        return called("ab")

    agents = {"Chief": Chief("Chief"), **BOSS}
    result = head(play, script, agents=agents, orchestra=Chain(spawns))
    assert (
        heard == ["error: nothing can be delegated at depth 1, the limit; answer yourself", "4"][: 2 - spawns]
    )
    assert [s.identity.depth for s in result.episodes[0].samples] == ([1, 1] if spawns else [0, 1, 1, 0])


class Asking(ToolAgent):
    prompt = "Boss: {task} {team_context}"
    tools = (delegate("Worker"),)


def test_children_of_a_call_read_what_it_read(play: Callable[..., Any]) -> None:
    """Nothing, although others have replied before they begin."""

    class Beside(BaseOrchestra):
        agents = ("Boss", "Planner", "Worker")

        async def run(self, turn: Turn) -> str:
            boss_reply, _ = await asyncio.gather(turn.act("Boss"), turn.act("Planner"))
            return boss_reply.action

    waits = [0.01]  # of the Boss, which is called first

    async def delay(_: Any) -> None:
        await asyncio.sleep(waits.pop() if waits else 0)

    def script(prompt: str, _: Any) -> str:
        return called("x") if "Boss: " in prompt and not results_in(prompt) else "reply"

    agents = {**AGENTS, "Boss": Asking("Boss")}
    result = head(play, script, agents=agents, orchestra=Beside(), delay=delay)
    (child,) = [s for s in result.episodes[0].samples if s.identity.depth]
    assert child.request.messages[0]["content"].strip() == "Do: x in abc"


class Patient(BaseOrchestra):
    """Answers itself when the call of the Boss fails; then a Worker replies."""

    agents = ("Boss", "Worker")

    async def run(self, turn: Turn) -> str:
        try:
            return (await turn.act("Boss")).action
        except RolloutError:
            await settle()  # what still runs ends meanwhile
            return str((await turn.act("Worker")).action)


@pytest.mark.parametrize("fails_in", ["last round", "child"])
def test_children_of_a_call_that_failed_are_not_trained(play: Callable[..., Any], fails_in: str) -> None:
    """Those at all depths, and those that still run when another one has failed."""

    def script(prompt: str, request: Any) -> str:
        if "Do: " in prompt:
            return "4"
        if "Boss: abc" in prompt and results_in(prompt) and fails_in == "last round":
            raise RolloutError("no reply")
        if "Boss: a<" in prompt and fails_in == "child":
            raise RolloutError("no reply")
        return boss(prompt, request)

    result = head(play, script, agents=BOSS | {"Worker": AGENTS["Worker"]}, orchestra=Patient(), env=Acting)
    (episode,) = result.episodes
    assert episode.failure is None and episode.answer == "4"
    assert [(s.agent_id, s.identity.trained) for s in episode.samples] == [("Worker", True)]
    assert not any(s.identity.trained for s in episode.unheard)
    depths = sorted(s.identity.depth for s in episode.unheard)
    assert depths == ([0, 1, 1, 1, 2, 2] if fails_in == "last round" else [1, 1, 2, 2])
    assert list(result.batch.non_tensor_batch["agent_id"]) == ["Worker"]


@pytest.mark.slow
def test_ten_thousand_tool_calls_are_eight_and_a_task_that_no_prompt_can_show_is_an_error(
    play: Callable[..., Any],
) -> None:
    heard: list[str] = []

    def script(prompt: str, _: Any) -> str:
        if results := results_in(prompt):
            heard.extend(results)
            return "\\boxed{4}"
        return called("z" * 4000, *["t"] * 9_999) if "Boss: abc" in prompt else "\\boxed{1}"

    result = head(play, script, max_prompt_length=3000, max_tokens=2_000_000)
    assert result.episodes[0].failure is None
    cut = head(play, script, max_prompt_length=2_000_000, max_tokens=2_000_000)
    assert heard[:3] == ["1", "1", "1"]
    assert heard[3:7] == ["error: 3 tasks, the most, have been delegated; answer yourself"] * 4
    assert re.fullmatch("error: [0-9]+ more tool calls were ignored; at most 8 per reply", heard[-1])
    assert len(cut.episodes[0].samples) == 5
    assert result.metrics["env/spawn/too_long"] == 1.0


class Pair(BaseOrchestra):
    """Two children with tools and a plain one, at the same time."""

    agents = ("Boss", "Worker")

    async def run(self, turn: Turn) -> str:
        async def work(child: Child, task: str) -> str:
            return str((await child.act("Worker" if len(task) == 1 else "Boss", task=task)).action)

        return "|".join(await spawn(turn, work, ["abcdefg", "x", "hij"], depth=4))


@pytest.mark.parametrize("suspends", [True, False])
@pytest.mark.parametrize("order", [1, 2, 3])
def test_rounds_of_children_with_tools_do_not_depend_on_which_reply_comes_first(
    play: Callable[..., Any], order: int, suspends: bool
) -> None:
    """Also with an engine that may reply without suspending the call."""

    class Large(Boss):
        tools: ClassVar[Any] = (delegate("Boss", most=3, depth=4),)

    def script(prompt: str, request: Any) -> str:
        return task_of(prompt) if "Do: " in prompt else boss(prompt, request)

    def played(seed: int) -> Any:
        rng = random.Random(seed)

        async def delay(request: Any) -> None:
            wait = rng.choice([0, 0.001, 0.004]) if seed else 0
            if wait or suspends:
                await asyncio.sleep(wait)

        agents = {"Boss": Large("Boss"), "Worker": AGENTS["Worker"]}
        result = head(play, script, delay=delay, agents=agents, orchestra=Pair())
        (episode,) = result.episodes
        assert episode.answer == "a!+b!+c!+d!+e!+f!+g!|x|h!+i!+j!"
        return [
            (
                s.agent_id,
                s.identity.call,
                s.identity.depth,
                s.request.seed,
                s.request.prompt_ids,
                s.identity.prior_replies,
            )
            for s in episode.samples
        ]

    first = played(0)
    assert max(depth for _, _, depth, *_ in first) == 4
    assert played(order) == first


def test_a_team_that_delegates_to_nobody_is_refused_before_an_episode(
    make_collector: Callable[..., Any], scripted: Callable[..., Any]
) -> None:
    class Lost(Boss):
        tools: ClassVar[Any] = (delegate("Wroker"),)

    agents = {"Boss": Lost("Boss"), "Worker": AGENTS["Worker"]}
    with pytest.raises(AgentSystemError) as error:
        make_collector(scripted([]), orchestra=Head(), agents=agents)
    assert str(error.value) == (
        "'Boss' delegates to 'Wroker', which is no agent of this run; did you mean 'Worker'?; "
        "agents: Boss, Worker"
    )


def test_delegate_in_a_tree_is_refused_in_one_line(
    make_collector: Callable[..., Any], scripted: Callable[..., Any]
) -> None:
    class Tried(Acting):
        def score(self, agent_id: str, action: str) -> Outcome:
            return Outcome()

    with pytest.raises(AgentSystemError, match="is a ToolAgent, whose call has several generations"):
        make_collector(
            scripted([]), orchestra=Head(), agents=BOSS, env=Tried, tree=TreeConfig(k=2),
            reward=RewardConfig(team_scope="call"),
        )  # fmt: skip


class Observing(BaseEnv):
    blocking = False

    def reset(self, task: Task) -> Observation:
        return Observation(task.prompt)

    def act(self, agent_id: str, action: str) -> Outcome:
        raise TimeoutError("the environment's own")

    def step(self, action: str) -> Outcome:
        return Outcome(done=True)


def test_an_error_in_a_child_of_a_tool_is_no_result_of_the_tool(play: Callable[..., Any]) -> None:
    result = head(play, boss, env=Observing, max_failure_rate=1.0)
    assert "the call of 'Boss' by delegate: TimeoutError" in result.episodes[0].failure
    assert result.episodes[0].samples == () or all(not s.identity.trained for s in result.episodes[0].unheard)
