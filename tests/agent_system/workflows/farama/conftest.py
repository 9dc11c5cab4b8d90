from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import pytest

from agent_system import EnvRegistry, Task
from agent_system.rollout import Collector
from agent_system.testing import make_tokenizer, scripted_team

if TYPE_CHECKING:
    from agent_system.workflows.farama import FaramaEnv

HERE = "tests.agent_system.workflows.farama.toys"
TICTACTOE: Mapping[str, Any] = {"env_id": "classic/tictactoe-v3", "api": "aec"}
RPS: Mapping[str, Any] = {
    "env_id": "classic/rps-v2",
    "api": "parallel",
    "actions": ["rock", "paper", "scissors"],
}
MEET: Mapping[str, Any] = {"env_id": f"{HERE}:Meet", "api": "parallel"}
LAKE: Mapping[str, Any] = {
    "env_id": "FrozenLake-v1",
    "kwargs": {"render_mode": "ansi", "is_slippery": False},
    "actions": ["left", "down", "right", "up"],
    "success_return": 1,
}


@pytest.fixture
def start() -> Callable[..., FaramaEnv]:
    """An environment after its reset."""
    from agent_system.workflows.farama import FaramaEnv, FaramaEnvOptions  # of the extra farama

    def make(
        base: Mapping[str, Any], *, task: Task | None = None, seed: int = 0, **options: Any
    ) -> FaramaEnv:
        env = FaramaEnv(FaramaEnvOptions(**{**base, **options}), seed=seed)
        env.reset(task or Task("t", ""))
        return env

    return make


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    return make_tokenizer()


@pytest.fixture
def seat(tokenizer: Any) -> Callable[..., Collector]:
    """A collector whose agents answer from scripts."""

    def make(
        params: Mapping[str, Any],
        scripts: Mapping[str, Any],
        *,
        advisers: tuple[str, ...] = (),
        env_name: str = "farama",
        orchestra: str = "farama",
        **settings: Any,
    ) -> Collector:
        options = {"advisers": list(advisers)} if orchestra == "farama" else None
        given = {
            "tokenizer": tokenizer,
            "max_tokens": 400,
            "max_prompt_length": 4000,
            "max_failure_rate": 0.0,
            "max_steps": 12,
        } | settings
        return scripted_team(
            orchestra, scripts, env_name=env_name, options=options, env_params=params, **given
        )

    return make


@pytest.fixture
def registered() -> Any:
    """Register an environment's class for one test."""
    names = []

    def add(name: str, cls: type[FaramaEnv]) -> None:
        EnvRegistry.register(name)(cls)
        names.append(name)

    yield add
    for name in names:
        EnvRegistry.remove(name)
