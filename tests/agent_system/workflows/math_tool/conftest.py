from collections.abc import Callable, Iterator
from typing import Any

import pytest

from agent_system import Task
from agent_system.reward import RewardSettings
from agent_system.rollout import AgentBinding, Collector, CollectorSettings, TreeSettings
from agent_system.sandbox import Limits, SandboxSettings, close_shared, configure
from agent_system.testing import ScriptedEngine, make_tokenizer
from agent_system.workflows.math_tool import REASONER, TOOL_USER
from verl.protocol.generate import SamplingParams

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
        sampling = SamplingParams(max_tokens=4000)
        bindings = {
            agent: AgentBinding(agent, agent, "wg", ScriptedEngine(tokenizer, replies), tokenizer, sampling, sampling, 8000)
            for agent, replies in ((REASONER, reasoner), (TOOL_USER, tool))
        }
        reward = RewardSettings(team_scope="call") if k else RewardSettings()
        settings = CollectorSettings(max_failure_rate=0.5, max_steps=max_steps, reward=reward, tree=TreeSettings(k) if k else None)
        collector = Collector.from_names(
            orchestra_type="math_tool",
            env_name="math_tool",
            bindings=bindings,
            settings=settings,
            orchestra_options={"prompt_style": style},
        )
        return await collector.collect([TASK], 1, step=0)

    return run
