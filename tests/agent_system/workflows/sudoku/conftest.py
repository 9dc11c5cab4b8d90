from collections.abc import Callable

import pytest

from agent_system import Task
from agent_system.rollout import CollectResult
from agent_system.testing import make_tokenizer, scripted_team
from agent_system.workflows.sudoku import EXECUTOR, TOOL, SudokuEnv, SudokuEnvOptions

CLUES = "1.3..4.22.4..3.1"
SOLUTION = "1234341221434321"
Play = Callable[..., CollectResult]


@pytest.fixture(scope="session")
def tokenizer():
    return make_tokenizer()


@pytest.fixture
def task() -> Task:
    return Task("t", "the puzzle", "demo", None, {"puzzle": CLUES})


@pytest.fixture
def make_env(task) -> Callable[..., SudokuEnv]:
    """A started environment: make_env(max_cells=2, ...)."""

    def make(**options) -> SudokuEnv:
        env = SudokuEnv(SudokuEnvOptions(**options))
        env.reset(task)
        return env

    return make


@pytest.fixture
def play(tokenizer, task) -> Play:
    """Play one episode with scripted replies: play(tool=[...], executor=[...], turns=..., options=...,
    env=...).
    """

    async def run(*, tool, executor, turns=1, options=None, env=None, tasks=None, n=1) -> CollectResult:
        limits = {
            "tokenizer": tokenizer,
            "max_tokens": 8000,
            "max_prompt_length": 4000,
            "max_failure_rate": 0.0,
            "max_steps": turns,
        }
        team = scripted_team(
            "sudoku", {TOOL: tool, EXECUTOR: executor}, options=options, env_params=env, **limits
        )
        return await team.collect(tasks or [task], n, step=0)

    return run
