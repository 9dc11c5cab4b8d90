"""Names: scopes, errors that teach, and workflows that live in somebody else's package."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from agent_system import (
    AgentRegistry,
    AgentSystemError,
    BaseAgent,
    EnvRegistry,
    OrchestraRegistry,
    load_plugins,
)
from agent_system.environment import Task
from agent_system.options import build_options
from agent_system.orchestra import BaseOrchestra
from agent_system.registry import ANY, ClassRegistry
from agent_system.rollout import AgentBinding, Collector, CollectorSettings
from agent_system.testing import ScriptedEngine, make_tokenizer
from verl.protocol.generate import SamplingParams


def make_registry() -> ClassRegistry[BaseAgent]:
    return ClassRegistry("agent", BaseAgent)


def test_two_orchestras_each_have_a_verifier_agent() -> None:
    registry = make_registry()
    common = registry.register("Verifier Agent")(type("Common", (BaseAgent,), {}))
    own = registry.register("Verifier Agent", orchestra="code")(type("Own", (BaseAgent,), {}))
    assert registry.get("Verifier Agent", orchestra="code") is own
    assert registry.get("Verifier Agent", orchestra="plan") is common
    assert registry.get("Verifier Agent") is common


def test_a_class_for_any_name_stands_in_for_those_without_one_in_its_scope() -> None:
    registry = make_registry()
    anyone = registry.register(ANY, orchestra="game")(type("Anyone", (BaseAgent,), {}))
    own = registry.register("Queen", orchestra="game")(type("Queen", (BaseAgent,), {}))
    common = registry.register("Judge")(type("Judge", (BaseAgent,), {}))
    assert [registry.get(name, orchestra="game") for name in ("Pawn", "Queen", "Judge")] == [
        anyone,
        own,
        common,
    ]
    assert registry.names(orchestra="game") == ["Judge", "Queen"]
    with pytest.raises(AgentSystemError, match=r"no agent named 'Pawn'.*known: Judge"):
        registry.get("Pawn", orchestra="plan")


def test_a_taken_name_is_an_error_that_names_who_has_it() -> None:
    registry = make_registry()
    registry.register("A")(type("First", (BaseAgent,), {}))
    with pytest.raises(AgentSystemError, match=r"already registered by .*First; .*scope it"):
        registry.register("A")(type("Second", (BaseAgent,), {}))


def test_an_unknown_name_lists_what_is_registered_and_the_nearest() -> None:
    registry = make_registry()
    registry.register("Solver Agent")(type("S", (BaseAgent,), {}))
    registry.register("Judge", orchestra="code")(type("J", (BaseAgent,), {}))
    with pytest.raises(AgentSystemError, match=r"did you mean 'Solver Agent'\?; known: Solver Agent"):
        registry.get("Slover agent")
    with pytest.raises(AgentSystemError, match="exists in the scope of orchestra code"):
        registry.get("Judge")


def test_a_class_of_the_wrong_kind_is_refused() -> None:
    with pytest.raises(AgentSystemError, match="must be a subclass of BaseAgent"):
        make_registry().register("A")(dict)


def test_a_built_in_workflow_is_found_by_its_name_and_listed_before_it_is_imported() -> None:
    assert OrchestraRegistry.get("math").agents == ("Solver Agent", "Verifier Agent")
    with pytest.raises(AgentSystemError, match=r"did you mean 'math'\?"):
        OrchestraRegistry.get("maths")


def test_a_missing_plugin_module_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(AgentSystemError, match=r"agent.plugins names the module 'no_such_flow.x'"):
        load_plugins(["no_such_flow.x"])
    (tmp_path / "needs_more.py").write_text("import no_such_library")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(
        AgentSystemError,
        match=r"agent.plugins: 'needs_more' imports what is not installed: .*'no_such_library'",
    ):
        load_plugins(["needs_more"])


@dataclass
class Options:
    rounds: int = 2
    rate: float = 0.5


class WithOptions(BaseOrchestra):
    config_class = Options

    async def run(self, turn):
        return None


def test_options_become_the_workflows_dataclass() -> None:
    assert WithOptions.from_options({"rounds": 3, "rate": 1}, "mine").config == Options(3, 1.0)
    with pytest.raises(
        AgentSystemError, match=r"mine.round is not an option; did you mean 'rounds'\?; valid: rate, rounds"
    ):
        WithOptions.from_options({"round": 3}, "mine")
    with pytest.raises(AgentSystemError, match=r"env.params.rounds must be int, found '3' \(str\)"):
        build_options(Options, {"rounds": "3"}, "env.params")


USER_PACKAGE = """
from agent_system import *

@AgentRegistry.register("Verifier Agent", orchestra="{name}")
class Checker(BaseAgent):
    prompt = "Ask: {{env_prompt}} in {{{{braces}}}}, {{hint}}"
    projection = tag("answer")

@OrchestraRegistry.register("{name}")
class Flow(BaseOrchestra):
    agents = ("Verifier Agent",)
    async def run(self, turn):
        return (await turn.act("Verifier Agent", hint="quickly")).action

@EnvRegistry.register("{name}")
class World(BaseEnv):
    def reset(self, task):
        return Observation(task.prompt)
    def step(self, action):
        return Outcome(team=float(action == "yes"), done=True)
"""


@pytest.fixture
def user_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A package outside this repository, importable for one test."""
    name = "users_flow"
    folder = tmp_path / name
    folder.mkdir()
    (folder / "__init__.py").write_text(USER_PACKAGE.format(name=name))
    monkeypatch.syspath_prepend(str(tmp_path))
    yield name
    sys.modules.pop(name, None)
    AgentRegistry.remove("Verifier Agent", orchestra=name)
    OrchestraRegistry.remove(name)
    EnvRegistry.remove(name)


def test_a_workflow_of_a_users_own_package_runs_without_an_edit_here(user_package: str) -> None:
    load_plugins([user_package])
    tokenizer = make_tokenizer()
    engine = ScriptedEngine(tokenizer, ["<answer>yes</answer>"])
    sampling = SamplingParams(50)
    bindings = {
        "Verifier Agent": AgentBinding("Verifier Agent", "p", "w", engine, tokenizer, sampling, sampling, 500)
    }
    collector = Collector.from_names(
        orchestra_type=user_package, env_name=user_package, bindings=bindings, settings=CollectorSettings()
    )
    result = asyncio.run(collector.collect([Task("t", "well?")], 1, step=1))
    assert result.batch.non_tensor_batch["reward"].tolist() == [1.0]
    assert "Ask: well? in {braces}, quickly" in result.episodes[0].samples[0].request.prompt_text
    assert AgentRegistry.get("Verifier Agent", orchestra="math") is not AgentRegistry.get(
        "Verifier Agent", orchestra=user_package
    )


def test_an_agent_without_a_policy_is_an_error_before_anything_runs() -> None:
    with pytest.raises(AgentSystemError, match=r"needs the agents .*Solver Agent.*which no policy serves"):
        Collector.from_names(
            orchestra_type="math", env_name="math", bindings={}, settings=CollectorSettings()
        )


def test_the_names_of_a_message_are_those_of_its_kind() -> None:
    """A workflow without an environment is no environment, and one without a folder has a name too."""
    with pytest.raises(AgentSystemError) as env_error:
        EnvRegistry.get("graph")
    env_names = str(env_error.value).partition("known: ")[2]
    assert "did you mean 'graph'" not in str(env_error.value)
    assert {"math", "lookup", "data_source"} <= set(env_names.partition(". A module")[0].split(", "))
    assert "graph" not in env_names.partition(". A module")[0].split(", ")
    with pytest.raises(AgentSystemError, match=r"did you mean 'single'") as team_error:
        OrchestraRegistry.get("singel")
    team_names = str(team_error.value).partition("known: ")[2].partition(". A module")[0].split(", ")
    assert {"graph", "design", "single", "math"} <= set(team_names)
