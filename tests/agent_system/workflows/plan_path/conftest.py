from collections.abc import Callable
from typing import Any

import pytest

from agent_system import Task
from agent_system.testing import make_tokenizer, scripted_team
from agent_system.workflows.plan_path import EXECUTOR, TOOL, PlanPathEnv, PlanPathEnvOptions

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
        limits = {"tokenizer": tokenizer, "max_tokens": 400, "max_prompt_length": 4000}
        team = scripted_team(
            "plan_path", {TOOL: tool, EXECUTOR: executor}, **limits, max_failure_rate=0.0, max_steps=max_steps
        )
        return await team.collect([Task("t", text, "demo", extra={"map": text})], n, step=0)

    return run
