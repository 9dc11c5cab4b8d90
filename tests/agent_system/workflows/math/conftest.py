from collections.abc import Callable, Iterator

import pytest

from agent_system import Task
from agent_system.rollout import CollectResult
from agent_system.testing import make_tokenizer, scripted_team
from agent_system.workflows.math import SOLVER, VERIFIER
from agent_system.workflows.math.world.grader_pool import GraderPool
from verl.trainer.config.reward import RewardConfig


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
    """Play one episode with scripted replies: play(solver=[...], verifier=[...], truth=..., options=...,
    env=..., reward=...).
    """

    async def run(*, solver, verifier=(), truth="42", options=None, env=None, reward=None) -> CollectResult:
        team = scripted_team(
            "math",
            {SOLVER: solver, VERIFIER: verifier},
            options=options,
            env_params=env,
            tokenizer=tokenizer,
            max_tokens=200,
            max_prompt_length=2000,
            max_failure_rate=0.0,
            reward=reward or RewardConfig(),
        )
        return await team.collect([Task("t", "What is 6 times 7?", "demo", truth)], 1, step=0)

    return run
