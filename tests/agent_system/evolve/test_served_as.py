"""Which agent of the run serves an agent of a team that edits have made."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agent_system.evolve.replay import ReplayMemory
from agent_system.launch import evolving
from agent_system.launch.evolving import EngineTeams
from agent_system.rollout.binding import AgentBinding
from agent_system.rollout.collector import Collector
from agent_system.rollout.settings import CollectorSettings
from agent_system.testing import ScriptedEngine, make_tokenizer
from agent_system.workflows.graph.team import Team
from verl.protocol.generate import SamplingParams
from verl.trainer.config import RunConfig

FILE = """\
team: 1
agents:
  Solver: {{prompt: "Solve: {{env_prompt}}", answer: number}}
  {name}: {{like: Solver, prompt: "Think: {{env_prompt}}"}}
do: [{{call: Solver, id: a}}, {{call: {name}, id: b}}]
return: [b, a]
"""


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("Writer", "Solver"),  # the name of an agent of the run that no file has
        ("Solver 2", "Solver"),  # of no agent of the run
        ("Critic", "Critic"),  # of the user's files: it may have a model of its own
    ],
)
def test_an_agent_of_an_edit_is_served_as_the_one_that_it_is_like(
    name: str, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = make_tokenizer()
    client = ScriptedEngine(tokenizer, lambda prompt, request: "7")
    sampling = SamplingParams(max_tokens=8)
    agents = {
        agent: AgentBinding(agent, agent, agent, client, tokenizer, sampling, sampling, 64)
        for agent in ("Solver", "Critic", "Writer")
    }
    monkeypatch.setattr(EngineTeams, "bindings", lambda teams: agents)
    monkeypatch.setattr(evolving, "collector_settings", lambda config, plan: CollectorSettings())
    monkeypatch.setattr(evolving, "build_reward_model", lambda *inputs: None)
    bindings: dict[str, AgentBinding] = {}
    build = Collector.__init__

    def init(collector: Collector, orchestra: Any, of_team: Any, env: Any, models: Any, *rest: Any) -> None:
        bindings.update(models)
        build(collector, orchestra, of_team, env, models, *rest)

    monkeypatch.setattr(Collector, "__init__", init)
    config = RunConfig()
    config.env.env_name = "math"
    plan: Any = None
    teams = EngineTeams(config, plan, {}, {}, ReplayMemory(), tmp_path, {"Solver", "Critic"})
    teams.collector(Team.parse(FILE.format(name=name)))
    assert bindings[name].wg_id == model and bindings[name].agent_id == name
    assert bindings["Solver"].wg_id == "Solver"
