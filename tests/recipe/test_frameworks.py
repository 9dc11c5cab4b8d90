"""The recipe of a LangGraph team: both teams have the same settings, and its README is that of its rows."""

import json
import shlex
from pathlib import Path

import pytest

from agent_system.launch.before_models import check_team
from agent_system.registry import AgentRegistry
from recipe.frameworks.measure import COMMON, HERE, TEAMS, table
from recipe.runs import overrides_of
from tests.docs.test_commands import asked_for
from verl.trainer.config import RunConfig
from verl.trainer.plan.checks import resolve
from verl.trainer.plan.derived_values import resolve_defaults

ROWS = json.loads((HERE / "results.json").read_text())


def configured(team: str, tmp_path: Path) -> RunConfig:
    command = shlex.join(["bash", "examples/run_math.sh", *overrides_of(COMMON | TEAMS[team])])
    config = asked_for(command, tmp_path)[1]
    resolve_defaults(config)
    check_team(config)
    resolve(config)
    return config


def test_the_teams_differ_in_the_team_alone(tmp_path: Path) -> None:
    pytest.importorskip("langgraph")
    orchestra, program = (configured(team, tmp_path / team) for team in TEAMS)
    assert program.agent.agent_ids == orchestra.agent.agent_ids
    for section in ("data", "actor_rollout_ref", "algorithm", "reward", "rollout", "env"):
        assert getattr(program, section) == getattr(orchestra, section), section
    for (
        name
    ) in program.agent.agent_ids:  # the recipe's agents of programs, which are not those of other tests
        AgentRegistry.remove(name, orchestra="gateway")


def test_the_table_of_the_readme_is_that_of_three_seeds() -> None:
    assert [(row["team"], row["seed"]) for row in ROWS] == [
        (team, seed) for team in TEAMS for seed in (0, 1, 2)
    ]
    readme = (HERE / "README.md").read_text(encoding="utf-8")
    assert all(f"{line}\n" in readme for line in table(ROWS))
    budget = COMMON["trainer.total_generated_tokens"]
    assert all(budget <= row["generated_tokens"] <= 1.05 * budget for row in ROWS)
