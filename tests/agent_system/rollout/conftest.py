"""A small team in a small world, with replies from a script."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import pytest

from agent_system import (
    BaseAgent,
    BaseEnv,
    BaseOrchestra,
    Observation,
    Outcome,
    Task,
    Turn,
    boxed_answer,
    verdict,
)
from agent_system.env_workers import EnvWorkers
from agent_system.rollout import AgentBinding, Collector, CollectorSettings, EnvFactory
from agent_system.rollout.remote import RemoteBinding
from agent_system.testing import ScriptedEngine, make_tokenizer
from verl.protocol.generate import SamplingParams


class Solver(BaseAgent):
    system = "ROLE solver"
    prompt = "Q: {env_prompt}\n{team_context}\n{memory}\nstep {step}"
    projection = boxed_answer


class Verifier(BaseAgent):
    prompt = "Check: {env_prompt}\n{team_context}"
    projection = verdict()


class Pair(BaseOrchestra):
    agents = ("Solver", "Verifier")

    async def run(self, turn: Turn) -> str:
        solution = await turn.act("Solver")
        judged = await turn.act("Verifier")
        if not judged.fields["approved"]:
            solution = await turn.act("Solver")
        return solution.action


class OneTurn(BaseEnv):
    blocking = False

    def reset(self, task: Task) -> Observation:
        self.task = task
        return Observation(task.prompt)

    def step(self, action: str) -> Outcome:
        right = action == self.task.ground_truth
        return Outcome(team=float(right), done=True, info={"success": right})


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    return make_tokenizer()


@pytest.fixture
def make_collector(tokenizer: Any) -> Callable[..., Collector]:
    """Build a collector around an engine; everything else has a default."""

    def make(
        engine: Any,
        *,
        orchestra: BaseOrchestra | None = None,
        agents: Mapping[str, BaseAgent] | None = None,
        env: type[BaseEnv] = OneTurn,
        max_prompt_length: int = 2000,
        max_tokens: int = 200,
        remote: Mapping[str, RemoteBinding] | None = None,
        frozen: Collection[str] = (),
        workers: EnvWorkers | None = None,
        reward_model: Any = None,
        **settings: Any,
    ) -> Collector:
        agents = agents or {"Solver": Solver("Solver"), "Verifier": Verifier("Verifier")}
        train, val = SamplingParams(max_tokens), SamplingParams(max_tokens, temperature=0.0)
        bindings = {
            name: AgentBinding(
                name,
                name.lower(),
                name.lower(),
                engine,
                tokenizer,
                train,
                val,
                max_prompt_length,
                trained=name not in frozen,
            )
            for name in agents
        }
        team = bindings | dict(remote or {})
        return Collector(
            orchestra or Pair(),
            agents,
            EnvFactory(env),
            team,
            CollectorSettings(**settings),
            workers,
            reward_model,
        )

    return make


@pytest.fixture
def scripted(tokenizer: Any) -> Callable[..., ScriptedEngine]:
    """Build a scripted engine; by default the Solver is right and the Verifier approves."""

    def default(prompt: str, _request: Any) -> str:
        return "<verify>approve</verify>" if "Check:" in prompt else "so \\boxed{4}"

    def make(script: Any = default, **options: Any) -> ScriptedEngine:
        return ScriptedEngine(tokenizer, script, **options)

    return make


@pytest.fixture
def tasks() -> list[Task]:
    return [Task("a", "2+2?", "sums", "4"), Task("b", "2+3?", "sums", "5")]
