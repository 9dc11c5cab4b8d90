"""The files of the built-in teams make the calls of the Python teams: the same agents, prompts, sampling and
seeds, and the same actions in the environment.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import agent_system.workflows
from agent_system import BaseEnv, EnvRegistry, Observation, Outcome, Task
from agent_system.rollout.seeds import stable_seed
from agent_system.testing import Script, scripted_team
from agent_system.workflows.graph import Team
from agent_system.workflows.graph.source import write_text

WORKFLOWS = Path(agent_system.workflows.__path__[0])
TEAMS: Mapping[str, tuple[str, ...]] = {
    "math": ("Solver Agent", "Verifier Agent"),
    "math_tool": ("Reasoner Agent", "Tool Agent"),
    "search": ("Verifier Agent", "Search Agent", "Answer Agent"),
    "code": ("Coder Agent", "Tester Agent"),
    "plan_path": ("Tool Agent", "Executor Agent"),
    "sudoku": ("Tool Agent", "Executor Agent"),
    "sokoban": ("Tool Agent", "Executor Agent"),
}
# What agents of the seven teams may say, right forms and wrong ones.
REPLIES = (
    "So \\boxed{7}", "\\boxed{", "I cannot say", "<think>\\boxed{1}</think>", " ", "<verify>approve</verify>",
    "<verify>reject</verify> it", "<verify>yes</verify>", "<verify>no</verify>", "<verify>maybe</verify>",
    "<search>who</search>", "<search></search>", "<answer>Ada</answer>", "<moves>U R</moves>",
    "<moves>X</moves>", "<plan>1 2 3</plan>", "<action>1 2 3</action>", "```python\nprint(1)\n```",
    "<input>\n1\n</input>\n<output>\n2\n</output>",
    '<tool_call>{"name": "python", "arguments": {"code": 3}}</tool_call>', "<tool_call>{</tool_call>",
)  # fmt: skip
TURNS, TASKS, EPISODES = 3, 50, 4
Call = tuple[Any, ...]
seen: list[Call] = []


@EnvRegistry.register("graph_world")
class GraphWorld(BaseEnv):
    """Has what the prompts of the seven teams need, and may end an episode inside a turn."""

    blocking = False

    def reset(self, task: Task) -> Observation:
        self.task = task
        self.turn = 0
        return self.look()

    def look(self) -> Observation:
        info = {
            "max_moves": 3, "rules": "Push.", "interface": "Print.", "form": "", "proposal": f"p{self.turn}",
            "last": {"reasoner": "1", "tool": ""} if self.turn else {}, "program": "print(1)" if self.turn
                else "",
            "mismatches": [{"given": "1", "expected": "2", "found": "3"}] * self.turn,
        }  # fmt: skip
        return Observation(f"{self.task.prompt} turn {self.turn}", info)

    def act(self, agent_id: str, action: str) -> Outcome:
        draw = stable_seed(self.seed, self.turn, agent_id, str(action)) % 12
        return Outcome(local=draw / 12, done=draw == 0)

    def step(self, action: str) -> Outcome:
        seen.append(("step", self.task.task_id, self.turn, type(action).__name__, str(action)))
        self.turn += 1
        return Outcome(
            team=float(len(str(action)) % 2), done=len(str(action)) % 5 == 4, observation=self.look()
        )


async def played(workflow: str, options: Mapping[str, Any], agents: tuple[str, ...], tokenizer: Any) -> Any:
    """Play 200 episodes; return their requests, the actions of their turns, and their records."""

    def script_of(agent: str) -> Script:
        def script(prompt: str, request: Any) -> str:
            seen.append((request.request_id, agent, request.prompt_ids, request.sampling, request.seed))
            return random.Random(request.seed).choice(REPLIES)

        return script

    seen.clear()
    scripts = {agent: script_of(agent) for agent in agents}
    team = scripted_team(
        workflow, scripts, env_name="graph_world", options=options, tokenizer=tokenizer, max_steps=TURNS,
        max_failure_rate=1.0,
    )  # fmt: skip
    tasks = [Task(f"t{i}", f"What is {i}?", "demo", str(i)) for i in range(TASKS)]
    episodes = (await team.collect(tasks, EPISODES, step=1)).episodes
    requests = sorted(call for call in seen if call[0] != "step")
    return requests, sorted(call for call in seen if call[0] == "step"), episodes


def shorter(team: Team) -> str:
    """The file with short prompts in the options of its classes."""
    value = team.source.value
    agents = {n: {**a, "options": {"prompt_style": "short"}} for n, a in value["agents"].items()}
    return write_text({**value, "agents": agents})


@pytest.mark.parametrize("style", ["full", "short"])
@pytest.mark.parametrize("name", TEAMS)
async def test_a_file_makes_the_calls_of_the_python_team(
    name: str, style: str, tokenizer: Any, tmp_path: Path
) -> None:
    file = WORKFLOWS / name / "team.yaml"
    if style == "short" and name == "math":
        file = WORKFLOWS / name / "team_short.yaml"
    elif style == "short":
        text = shorter(Team.load(file))
        file = tmp_path / "team.yaml"
        file.write_text(text)
    python, of_file = [
        await played(workflow, options, TEAMS[name], tokenizer)
        for workflow, options in ((name, {"prompt_style": style}), ("graph", {"file": str(file)}))
    ]
    requests, steps, episodes = python
    assert len(episodes) == TASKS * EPISODES and len(requests) > TASKS * EPISODES
    assert of_file[:2] == (requests, steps)
    for ours, theirs in zip(of_file[2], episodes, strict=True):
        assert (ours.failure, ours.turns, ours.team_reward) == (
            theirs.failure,
            theirs.turns,
            theirs.team_reward,
        )
        assert [results_of(s) for s in ours.samples] == [results_of(s) for s in theirs.samples]
    assert any(not s.valid for e in episodes for s in e.samples)
    assert len({len(e.samples) for e in episodes}) > 2, "some end early"


def results_of(sample: Any) -> Any:
    return sample.agent_id, sample.valid, sample.fields, sample.action, sample.rewards.reward
