from collections.abc import Callable
from typing import Any

import pytest

from agent_system import Task
from agent_system.rollout import AgentBinding, Collector, CollectorSettings
from agent_system.testing import ScriptedEngine, make_tokenizer
from agent_system.workflows.plan_path import EXECUTOR, TOOL, PlanPathEnv, PlanPathEnvOptions
from verl.protocol.generate import SamplingParams

# The shortest way is D D R R U U: the wall in the middle stands between start and goal.
AROUND = "S#G\n.#.\n..."


@pytest.fixture
def start() -> Callable[..., PlanPathEnv]:
    """An environment at the start of a map."""

    def make(text: str = AROUND, **options: Any) -> PlanPathEnv:
        env = PlanPathEnv(PlanPathEnvOptions(**options))
        env.reset(Task("t", text, extra={"map": text}))
        return env

    return make


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    return make_tokenizer()


@pytest.fixture
def play(tokenizer: Any) -> Callable[..., Any]:
    """Play episodes with scripted replies."""

    async def run(*, tool: Any, executor: Any, text: str = AROUND, n: int = 1, max_steps: int = 6) -> Any:
        sampling = SamplingParams(max_tokens=400)

        def binding(agent: str, replies: Any) -> AgentBinding:
            return AgentBinding(agent, "policy", "wg", ScriptedEngine(tokenizer, replies), tokenizer, sampling, sampling, 4000)

        collector = Collector.from_names(
            orchestra_type="plan_path",
            env_name="plan_path",
            bindings={TOOL: binding(TOOL, tool), EXECUTOR: binding(EXECUTOR, executor)},
            settings=CollectorSettings(max_failure_rate=0.0, max_steps=max_steps),
        )
        return await collector.collect([Task("t", text, "demo", extra={"map": text})], n, step=0)

    return run
