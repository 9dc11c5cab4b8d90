from collections.abc import Callable, Iterator
from typing import Any

import pytest

from agent_system import Task
from agent_system.reward import RewardSettings
from agent_system.rollout import TreeSettings
from agent_system.sandbox import Limits, SandboxSettings, close_shared, configure
from agent_system.testing import make_tokenizer, scripted_team
from agent_system.workflows.math_tool import REASONER, TOOL_USER

TASK = Task("t", "What is 6 times 7?", "demo", "42")


@pytest.fixture(scope="module", autouse=True)
def sandbox() -> Iterator[None]:
    configure(SandboxSettings(min_level="rlimits", workers=2, limits=Limits(cpu_s=1.0, wall_s=60.0, memory_mb=128)))
    yield
    close_shared()


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    return make_tokenizer()


@pytest.fixture
def play(tokenizer: Any) -> Callable[..., Any]:
    """Play episodes with scripted replies."""

    async def run(reasoner: Any, tool: Any, *, k: int = 0, max_steps: int = 3, style: str = "full") -> Any:
        team = scripted_team(
            "math_tool",
            {REASONER: reasoner, TOOL_USER: tool},
            options={"prompt_style": style},
            tokenizer=tokenizer,
            max_failure_rate=0.5,
            max_steps=max_steps,
            reward=RewardSettings(team_scope="call") if k else RewardSettings(),
            tree=TreeSettings(k) if k else None,
        )
        return await team.collect([TASK], 1, step=0)

    return run
