"""Agents with state in whole runs: a summary as memory, notes, tools that change the agent; resumed and
served.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from agent_system.rollout import tool_loop
from agent_system.serve import conversation
from agent_system.tools.formats import ToolRequest
from tests.e2e.conftest import Run, weights

PACKAGE = '''
from agent_system import AgentRegistry, BaseAgent, BaseOrchestra, EnvRegistry, Observation, OrchestraRegistry, Outcome, SummaryMemory, Task
from agent_system.projection import Projection
from agent_system.tools import ToolAgent
from my_flow_package import MyWorld


@AgentRegistry.register("Scout", orchestra="scouting")
class Scout(BaseAgent):
    prompt = "{env_prompt} notes {notes} memory {memory}"
    memory_class = SummaryMemory

    def start(self, task):
        self.notes = []

    def project(self, text):
        self.notes.append(len(text))
        return Projection(text)

    def messages(self, variables):
        return super().messages({**variables, "notes": self.notes})


@AgentRegistry.register("Clerk", orchestra="scouting")
class Clerk(ToolAgent):
    tools = ("write",)
    max_rounds = 2

    def start(self, task):
        self.written = []

    def write(self, word: str) -> str:
        """Write a word down.

        Args:
            word: the word.
        """
        self.written.append(word)
        return "done"

    def describe_tools(self):
        return f"written: {self.written}"


@OrchestraRegistry.register("scouting")
class Scouting(BaseOrchestra):
    agents = ("Scout", "Clerk")

    async def run(self, turn):
        await turn.act("Scout")
        return (await turn.act("Clerk")).action


@EnvRegistry.register("field")
class Field(MyWorld):
    @classmethod
    def question(cls, text):
        return Task("question", text, judged=False)

    def reset(self, task):
        self.turn = 0
        return Observation(task.prompt)

    def step(self, action):
        self.turn += 1
        return Outcome(done=self.turn == 2, observation=Observation(f"turn {self.turn}"))
'''
KEYS = {
    "agent.plugins": "[my_flow_package,state_package]",
    "agent.orchestra_type": "scouting",
    "agent.agent_ids": "[Scout,Clerk]",
    "env.env_name": "field",
    "env.max_steps": 2,
    "env.history_length": 1,
    "env.rollout.n": 2,
    "data.train_batch_size": 1,
    "data.max_prompt_length": 400,
    "data.val_files": "[]",
    "trainer.save_freq": 1,
    "trainer.log_trajectories": -1,
}


def check_state(calls: list[dict[str, Any]]) -> None:
    """The second prompt of each agent shows what it noted, summarized and wrote in the first turn."""
    first, summary, second = (c for c in calls if c["agent_id"] == "Scout")
    assert (
        f"notes [{len(first['reply'])}] memory Summary: {summary['action']}" in second["prompt"]
        and summary["summary"]
    )
    written: list[str] = []
    for call in (c for c in calls if c["agent_id"] == "Clerk"):
        assert f"written: {written}" in call["prompt"]
        written += ["x"] * (call["tools"]["calls"] and not call["tools"]["cut"])


def test_a_run_of_agents_with_state_is_resumed_to_the_bit_and_served(
    train: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "state_package.py").write_text(PACKAGE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(
        tool_loop,
        "read_calls",
        lambda text, syntaxes, tools: [ToolRequest("write", {"word": "x"})] if len(text) % 2 else [],
    )
    whole, resumed = tmp_path / "run", tmp_path / "resumed"
    train(KEYS)
    for line in (whole / "trajectories" / "train_000002.jsonl").read_text().splitlines():
        check_state(json.loads(line)["calls"])
    start = {
        "trainer.resume_mode": whole / "checkpoints" / "global_step_1",
    }
    train(KEYS | start | {"trainer.default_local_dir": resumed})
    assert weights(resumed, 2) == weights(whole, 2)
    with conversation(str(whole)) as team:
        answers = [asyncio.run(team.ask(question)) for question in ("one?", "two?")]
    for record in answers:
        assert record.failure is None
        check_state(record.to_json()["calls"])
