from collections.abc import Callable, Iterator

import pytest

from agent_system import Task
from agent_system.reward import RewardSettings
from agent_system.rollout.binding import AgentBinding
from agent_system.rollout.collector import Collector, CollectResult
from agent_system.rollout.settings import CollectorSettings
from agent_system.testing import ScriptedEngine, make_tokenizer
from agent_system.workflows.math import SOLVER, VERIFIER
from agent_system.workflows.math.grader_pool import GraderPool
from verl.protocol.generate import SamplingParams


@pytest.fixture(scope="session")
def pool() -> Iterator[GraderPool]:
    pool = GraderPool(workers=1, timeout_s=1.0)
    yield pool
    pool.close()


@pytest.fixture(scope="session")
def tokenizer():
    return make_tokenizer()


Play = Callable[..., CollectResult]


@pytest.fixture
def play(tokenizer) -> Play:
    """Play one episode with scripted replies: play(solver=[...], verifier=[...], truth=..., options=..., env=..., reward=...)."""

    async def run(*, solver, verifier=(), truth="42", options=None, env=None, reward=None) -> CollectResult:
        sampling = SamplingParams(max_tokens=200)

        def binding(agent: str, replies: object) -> AgentBinding:
            engine = ScriptedEngine(tokenizer, replies)  # type: ignore[arg-type]
            return AgentBinding(agent, "policy", "wg", engine, tokenizer, sampling, sampling, 2000)

        collector = Collector.from_names(
            orchestra_type="math",
            env_name="math",
            bindings={SOLVER: binding(SOLVER, solver), VERIFIER: binding(VERIFIER, verifier)},
            settings=CollectorSettings(max_failure_rate=0.0, reward=reward or RewardSettings()),
            orchestra_options=options,
            env_params=env,
        )
        return await collector.collect([Task("t", "What is 6 times 7?", "demo", truth)], 1, step=0)

    return run
