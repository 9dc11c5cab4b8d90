"""The keys under `sandbox` of a training run."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest

from agent_system import AgentSystemError, BaseEnv, EnvRegistry, Observation, Outcome, Task
from agent_system.launch.checks import start_sandbox
from agent_system.sandbox import SandboxError, close_shared, configure, local, shared_sandbox
from tests.docs.pages import blocks
from verl.trainer.config import RunConfig, SandboxConfig

NAME = "judged_by_running"


class Judged(BaseEnv):
    """Runs the answer."""

    uses_sandbox = True

    def reset(self, task: Task) -> Observation:
        return Observation(task.prompt)

    async def step(self, action: str) -> Outcome:
        result = await shared_sandbox().run(action)
        return Outcome(team=float(result.stdout == "42\n"), done=True)


@pytest.fixture
def config() -> Iterator[RunConfig]:
    EnvRegistry.register(NAME)(Judged)
    config = RunConfig()
    config.env.env_name = NAME
    config.sandbox.min_level = "rlimits"
    config.sandbox.workers = 1
    yield config
    close_shared()
    EnvRegistry.remove(NAME)


async def test_an_environment_that_runs_programs_gets_a_sandbox(
    config: RunConfig, caplog: pytest.LogCaptureFixture
) -> None:
    config.sandbox.limits.memory_mb = 100
    with caplog.at_level(logging.INFO):
        start_sandbox(config)
    assert [line for line in caplog.messages if line.startswith("sandbox: level ")]
    assert shared_sandbox().settings.limits.memory_mb == 100
    env = Judged()
    assert (await env.step("print(6 * 7)")).team == 1
    assert (await env.step("print(bytearray(2 * 10**8))")).team == 0


def test_a_sandbox_that_is_too_weak_stops_the_run(config: RunConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    def worker(level: str, *rest: object) -> object:
        if level != "rlimits":
            raise SandboxError(f"OSError: no {level} here")
        return start(level, *rest)

    start = local.SandboxWorker
    monkeypatch.setattr(local, "SandboxWorker", worker)
    config.sandbox.min_level = "seccomp"
    with pytest.raises(
        SandboxError, match=r"sandbox.min_level=seccomp, but this machine offers 'rlimits' only"
    ):
        start_sandbox(config)


def test_keys_without_a_sandbox_are_an_error() -> None:
    config = RunConfig()
    start_sandbox(config)
    config.sandbox.limits.memory_mb = 100
    with pytest.raises(
        AgentSystemError, match=r"sandbox\.limits has no effect: env\.env_name=math runs no programs"
    ):
        start_sandbox(config)


def plan_path(**options: str) -> RunConfig:
    config = RunConfig()
    config.agent.orchestra_type = config.env.env_name = "plan_path"
    config.agent.agent_ids = ["Tool Agent", "Executor Agent"]
    config.agent.orchestra = {"plan_path": options}
    config.sandbox.min_level = "rlimits"
    config.sandbox.workers = 1
    return config


def test_a_team_that_writes_programs_gets_a_sandbox_by_its_options(caplog: pytest.LogCaptureFixture) -> None:
    try:
        with caplog.at_level(logging.INFO):
            start_sandbox(plan_path(tool="code"))
        assert [line for line in caplog.messages if line.startswith("sandbox: level ")]
        assert shared_sandbox().settings.workers == 1
    finally:
        close_shared()


@pytest.mark.parametrize("options", [{}, {"tool": "moves"}])
def test_keys_of_a_sandbox_are_an_error_for_a_team_that_writes_no_programs(options: dict[str, str]) -> None:
    expected = r"sandbox\.min_level, sandbox\.workers has no effect: .* agent\.orchestra\.plan_path the agents write none"
    with pytest.raises(AgentSystemError, match=expected):
        start_sandbox(plan_path(**options))


async def test_the_environment_of_the_page_judges_programs() -> None:
    (block,) = [b for b in blocks("python") if b.page == "docs/sandbox.md"]
    names: dict[str, Any] = {"__name__": "page"}
    try:
        exec(compile(block.text, block.page, "exec"), names)
        configure(SandboxConfig(min_level="rlimits", workers=1))
        env = names["JudgedPrograms"]()
        assert env.uses_sandbox
        env.reset(
            Task(
                "t", "add", extra={"tests": [{"stdin": "1 2", "right": "3"}, {"stdin": "2 2", "right": "5"}]}
            )
        )
        assert (await env.step("print(sum(map(int, input().split())))")).team == 0.5
    finally:
        close_shared()
        EnvRegistry.remove("judged_programs")
