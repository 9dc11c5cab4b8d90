from collections.abc import Callable

import pytest

from agent_system import Task
from agent_system.rollout.binding import AgentBinding
from agent_system.rollout.collector import Collector, CollectResult
from agent_system.rollout.settings import CollectorSettings
from agent_system.testing import ScriptedEngine, make_tokenizer
from agent_system.workflows.sudoku import EXECUTOR, TOOL, SudokuEnv, SudokuEnvOptions
from verl.protocol.generate import SamplingParams

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
    """Play one episode with scripted replies: play(tool=[...], executor=[...], turns=..., options=..., env=...)."""

    async def run(*, tool, executor, turns=1, options=None, env=None, tasks=None, n=1) -> CollectResult:
        sampling = SamplingParams(max_tokens=8000)

        def binding(agent: str, replies: object) -> AgentBinding:
            engine = ScriptedEngine(tokenizer, replies)  # type: ignore[arg-type]
            return AgentBinding(agent, "policy", "wg", engine, tokenizer, sampling, sampling, 4000)

        collector = Collector.from_names(
            orchestra_type="sudoku",
            env_name="sudoku",
            bindings={TOOL: binding(TOOL, tool), EXECUTOR: binding(EXECUTOR, executor)},
            settings=CollectorSettings(max_failure_rate=0.0, max_steps=turns),
            orchestra_options=options,
            env_params=env,
        )
        return await collector.collect(tasks or [task], n, step=0)

    return run
