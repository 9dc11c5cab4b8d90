from collections.abc import Callable, Iterator
from typing import Any

import pytest

from agent_system import Task
from agent_system.sandbox import close_shared, configure
from agent_system.task import task_from_row
from agent_system.testing import make_tokenizer, scripted_team
from agent_system.workflows.code import CODER, TESTER
from agent_system.workflows.code.world.problem import Case
from agent_system.workflows.code.world.rows import make_row
from verl.trainer.config.reward import RewardConfig
from verl.trainer.config.run import TreeConfig
from verl.trainer.config.sandbox import SandboxConfig, SandboxLimitsConfig

ADD = "a, b = map(int, input().split())\nprint(a + b)"
HIDDEN = (("31 41", "72"), ("5 -5", "0"), ("900 77", "977"), ("8 8", "16"))


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


def adding(**changes: Any) -> Task:
    """Add two numbers; four golden tests."""
    cases = [Case(f"{given}\n", f"{expected}\n") for given, expected in HIDDEN]
    return task_from_row(
        make_row(
            "Add two numbers.",
            cases,
            **({"reference": ADD, "data_source": "demo", "split": "t", "index": 0} | changes),
        )
    )


def fenced(program: str) -> str:
    return f"So:\n```python\n{program}\n```"


def written(*pairs: tuple[str, str]) -> str:
    return "\n".join(
        f"Hm. <input>\n{given}\n</input>\n<output>\n{expected}\n</output>" for given, expected in pairs
    )


@pytest.fixture
def play(tokenizer: Any) -> Callable[..., Any]:
    """Play episodes with scripted replies."""

    async def run(
        coder: Any,
        tester: Any,
        *,
        task: Task | None = None,
        n: int = 1,
        k: int = 0,
        max_steps: int = 3,
        options: Any = None,
        env: Any = None,
    ) -> Any:
        team = scripted_team(
            "code",
            {CODER: coder, TESTER: tester},
            options=options,
            env_params=env,
            tokenizer=tokenizer,
            max_failure_rate=0.5,
            max_steps=max_steps,
            reward=RewardConfig(team_scope="call") if k else RewardConfig(),
            tree=TreeConfig(k) if k else None,
        )
        return await team.collect([task or adding()], n, step=0)

    return run
