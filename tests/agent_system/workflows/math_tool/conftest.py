from collections.abc import Callable, Iterator
from typing import Any

import pytest

from agent_system import Task
from agent_system.sandbox import close_shared, configure
from agent_system.testing import make_tokenizer, scripted_team
from agent_system.workflows.math_tool import REASONER, TOOL_USER
from verl.trainer.config.reward import RewardConfig
from verl.trainer.config.run import TreeConfig
from verl.trainer.config.sandbox import SandboxConfig, SandboxLimitsConfig

TASK = Task("t", "What is 6 times 7?", "demo", "42")


@pytest.fixture(scope="module", autouse=True)
def sandbox() -> Iterator[None]:
    configure(
        SandboxConfig(
            min_level="rlimits", workers=2, limits=SandboxLimitsConfig(cpu_s=1.0, wall_s=60.0, memory_mb=128)
        )
    )
    yield
    close_shared()


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    return make_tokenizer()


@pytest.fixture
def play(tokenizer: Any) -> Callable[..., Any]:
    """Play episodes with scripted replies."""

    async def run(
        reasoner: Any, tool: Any, *, k: int = 0, max_steps: int = 3, style: str = "full", max_rounds: int = 4
    ) -> Any:
        team = scripted_team(
            "math_tool",
            {REASONER: reasoner, TOOL_USER: tool},
            options={"prompt_style": style, "max_rounds": max_rounds},
            tokenizer=tokenizer,
            max_failure_rate=0.5,
            max_steps=max_steps,
            reward=RewardConfig(team_scope="call") if k else RewardConfig(),
            tree=TreeConfig(k) if k else None,
        )
        return await team.collect([TASK], 1, step=0)

    return run
