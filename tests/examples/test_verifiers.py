"""Environments of the package `verifiers`, in a Python environment of their own, play against the gateway."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from agent_system.registry import EnvRegistry
from agent_system.task import task_from_row
from agent_system.tools import calculator
from tests.agent_system.gateway.conftest import build
from tests.agent_system.gateway.templates import tokenizer_of
from tests.environments import python_with
from tests.house.source import ROOT

SCRIPT = str(ROOT / "examples" / "verifiers" / "play.py")
CLASSIC, V1 = ("verifiers==0.3.1", "reasoning-gym>=0.1.24"), ("verifiers==0.4.0",)
OWN = '''
"""Environments with a rubric: several turns, and tools."""

import verifiers as vf
from datasets import Dataset


def said(messages):
    return messages[-1]["content"] if isinstance(messages[-1], dict) else messages[-1].content


class Guess(vf.MultiTurnEnv):
    @vf.stop
    async def found(self, state):
        return bool(state["trajectory"]) and said(state["trajectory"][-1]["completion"]) == state["answer"]

    async def env_response(self, messages, state, **kwargs):
        return [{"role": "user", "content": "higher" if said(messages) < state["answer"] else "lower"}]


def double(x: int) -> int:
    """Return twice a number.

    Args:
        x: the number.
    """
    return 2 * x


async def right(completion, answer, **kwargs):
    return 1.0 if said(completion) == answer else 0.25


def load_environment(kind="guess"):
    rows = Dataset.from_list([{"question": "Guess.", "answer": "4", "info": {"n": 1}}, {"question": "Again.", "answer": "5"}])
    rubric = vf.Rubric(funcs=[right], weights=[1.0])
    if kind == "guess":
        return Guess(dataset=rows, rubric=rubric, system_prompt="You guess.", max_turns=3)
    return vf.ToolEnv(dataset=rows, rubric=rubric, tools=[double], max_turns=3)
'''


DUO = '''
"""A taskset whose environment has two seats, one of which is asked twice."""

import verifiers.v1 as vf

__all__ = ["Duo", "Sums"]


class Data(vf.TaskData):
    answer: str


class Sum(vf.Task[Data, vf.State, vf.TaskConfig]):
    @vf.reward
    async def right(self, trace) -> float:
        return float(trace.last_reply == self.data.answer)


class Sums(vf.Taskset[Sum, vf.TasksetConfig]):
    def load(self):
        for number in range(2):
            yield Sum(Data(prompt=f"{number}+{number}?", answer=str(2 * number), system_prompt="You add."), self.config.task)


class Seats(vf.EnvConfig):
    writer: vf.AgentConfig = vf.AgentConfig()
    editor: vf.AgentConfig = vf.AgentConfig()


class Duo(vf.Env[Seats]):
    async def run(self, task, agents):
        async with agents.writer.interaction(task) as chat:
            await chat.turn()
            await chat.turn("sure?")
        await agents.editor.run(task)
'''


@pytest.fixture(scope="module", autouse=True)
def installed(request: pytest.FixtureRequest) -> None:
    """Skip unless both packages may be installed."""
    if not request.config.getoption("--all-levels"):
        pytest.skip("takes two minutes to install: needs --all-levels")


@pytest.fixture(scope="module")
def python(installed: None) -> str:
    """The Python of an environment for classic environments."""
    return python_with(*CLASSIC)


@pytest.fixture
def rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Rows of an environment, as tasks."""
    (tmp_path / "my_games.py").write_text(OWN)
    (tmp_path / "duo.py").write_text(DUO)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    def read(python: str, *arguments: str) -> list[Any]:
        output = tmp_path / "tasks.jsonl"
        done = subprocess.run(
            [python, SCRIPT, "rows", *arguments, "--output", output], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr[-2000:]
        return [task_from_row(json.loads(line)) for line in output.read_text().splitlines()]

    return read


async def play(
    python: str, tasks: Any, replies: Any, *arguments: str, agents: Sequence[str] = ("Player",)
) -> tuple[Any, Any]:
    """Episodes of tasks, and their metrics."""
    command = (python, SCRIPT, "team", *arguments)
    env = EnvRegistry.get("gateway")
    collector, _ = build(
        tokenizer_of("qwen2.5"),
        None,
        replies,
        team_command=command,
        agents=agents,
        env=env,
        max_failure_rate=1.0,
    )
    result = await collector.collect(tasks, 1, step=1)
    return result.episodes, result.metrics


async def test_a_rollout_of_several_turns_is_an_episode_with_exact_tokens(python: str, rows: Any) -> None:
    tasks = rows(python, "my-games")
    assert [task.prompt for task in tasks] == ["Guess.", "Again."]

    def replies(prompt: str, request: Any) -> str:
        return str(prompt.count("<|im_start|>assistant") + 2)

    episodes, metrics = await play(python, tasks, replies, "my-games")
    assert [episode.failure for episode in episodes] == [None, None]
    assert [(episode.team_reward, len(episode.samples)) for episode in episodes] == [(1.0, 2), (1.0, 3)]
    assert all(
        sample.identity.trained and sample.rewards.reward == 1.0
        for episode in episodes
        for sample in episode.samples
    )
    assert (
        "You guess." in episodes[0].samples[0].request.prompt_text
        and "higher" in episodes[0].samples[1].request.prompt_text
    )
    for episode in episodes:
        for before, after in zip(episode.samples, episode.samples[1:], strict=False):
            said = before.request.prompt_ids + before.generation.token_ids
            assert after.request.prompt_ids[: len(said)] == said
    assert metrics["gateway/rewritten/client"] == metrics["gateway/rewritten/template"] == 0


async def test_an_empty_reply_is_rewarded_by_the_rubric_and_fails_no_episode(python: str, rows: Any) -> None:
    episodes, _ = await play(python, rows(python, "my-games"), lambda prompt, request: "", "my-games")
    assert [(e.failure, e.team_reward, len(e.samples)) for e in episodes] == [(None, 0.0, 1)] * 2
    assert all(sample.identity.trained for episode in episodes for sample in episode.samples)


async def test_an_environment_with_tools_calls_them(python: str, rows: Any) -> None:
    arguments = ("my-games", "--args", '{"kind": "tools"}')

    def replies(prompt: str, request: Any) -> str:
        return (
            "4"
            if "<tool_response>" in prompt
            else '<tool_call>{"name": "double", "arguments": {"x": 2}}</tool_call>'
        )

    episodes, metrics = await play(python, rows(python, *arguments), replies, *arguments)
    assert [(e.failure, e.team_reward, len(e.samples)) for e in episodes] == [(None, 1.0, 2), (None, 0.25, 2)]
    assert metrics["gateway/rewritten/client"] == 0


async def test_an_environment_of_the_package_scores_with_its_own_rubric(
    python: str, rows: Any, tmp_path: Path
) -> None:
    (tmp_path / "sums.py").write_text(
        "import verifiers as vf\n\n\ndef load_environment(**args):\n    return "
        "vf.ReasoningGymEnv(gym='chain_sum', **args)\n"
    )
    arguments = ("sums", "--args", '{"num_train_examples": 2, "num_eval_examples": 2}')
    tasks = rows(python, *arguments)

    def replies(prompt: str, request: Any) -> str:
        terms = re.search(r"([-+ \d]+)=", prompt)
        return (
            f"<answer>{calculator(terms[1])}</answer>"
            if terms and tasks[0].prompt in prompt
            else "<answer>none</answer>"
        )

    episodes, _ = await play(python, tasks, replies, *arguments)
    assert [episode.failure for episode in episodes] == [None, None]
    assert episodes[0].team_reward == 1.0 > episodes[1].team_reward
    assert episodes[0].info["verifiers/check_answer_reward_func"] == 1.0


async def test_what_goes_wrong_in_the_environment_fails_its_episode_alone(python: str, rows: Any) -> None:
    tasks = rows(python, "my-games")
    broken = [tasks[0], type(tasks[1])("b", "no row", extra={"verifiers": "{}"})]
    episodes, _ = await play(python, broken, lambda prompt, request: "4", "my-games")
    assert episodes[0].failure is None and "ended with status 1" in episodes[1].failure


async def test_each_seat_of_a_taskset_is_an_agent(rows: Any) -> None:
    python = python_with(*V1)
    tasks = rows(python, "duo")
    assert [task.prompt for task in tasks] == ["0+0?", "1+1?"]
    agents = ["Writer", "Editor"]
    episodes, _ = await play(python, tasks, lambda prompt, request: "2", "duo", agents=agents)
    assert [episode.failure for episode in episodes] == [None, None]
    assert [[sample.agent_id for sample in episode.samples] for episode in episodes] == [
        ["Writer", "Writer", "Editor"]
    ] * 2
    assert [episode.team_reward for episode in episodes] == [0.0, 1.0]
    first, second, _ = episodes[1].samples
    said = first.request.prompt_ids + first.generation.token_ids
    assert (
        second.request.prompt_ids[: len(said)] == said
        and "You add." in first.request.prompt_text
        and "sure?" in second.request.prompt_text
    )
    episodes, _ = await play(
        python, tasks[:1], lambda prompt, request: "2", "duo", agents=["Writer", "Judge"]
    )
    assert "no agent of the run is named as the seat 'editor'" in episodes[0].failure
