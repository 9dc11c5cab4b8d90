"""Starting a private cluster on a busy machine, with a fake `ray.init`."""

from typing import Any

import pytest
import ray

from verl.single_controller.ray.start import ATTEMPTS, start_private_cluster
from verl.trainer.config import RunConfig
from verl.trainer.plan.command_line import compose_config
from verl.trainer.ppo.controller import RayController

SLOW = "The current node timed out during startup. This could happen because some of the raylet failed to startup"


class FakeRay:
    """Raises these errors from `ray.init`, one per call, then succeeds."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *errors: Exception) -> None:
        self.errors, self.calls = list(errors), []
        monkeypatch.setattr(ray, "init", self.init)
        monkeypatch.setattr(ray, "shutdown", lambda: self.calls.append("shutdown"))

    def init(self, **options: Any) -> None:
        self.calls.append(options)
        if self.errors:
            raise self.errors.pop(0)


def test_a_start_that_was_too_slow_is_retried(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fake = FakeRay(monkeypatch, Exception(SLOW), Exception(SLOW))
    start_private_cluster(num_cpus=2)
    options = {"address": "local", "include_dashboard": False, "num_cpus": 2}
    assert fake.calls == [options, "shutdown", options, "shutdown", options]
    assert "retrying" in caplog.text


def test_a_machine_that_is_always_too_slow_and_another_error_are_raised(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fake = FakeRay(monkeypatch, *[Exception(SLOW)] * ATTEMPTS)
    with pytest.raises(Exception, match="timed out during startup"):
        start_private_cluster()
    assert fake.calls.count("shutdown") == ATTEMPTS - 1
    fake = FakeRay(monkeypatch, ValueError("num_cpus must be positive"))
    with pytest.raises(ValueError, match="positive"):
        start_private_cluster(num_cpus=-1)
    assert len(fake.calls) == 1


def test_the_cluster_of_a_run_keeps_no_finished_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """With every step there are more of them, and no dashboard shows them."""
    fake = FakeRay(monkeypatch)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    RayController(RunConfig(), "cpu")
    (options,) = fake.calls
    assert options["_system_config"]["task_events_report_interval_ms"] == 0


@pytest.mark.parametrize("address", [None, "10.0.0.1:6379"])
def test_environment_variables_are_those_of_all_workers(
    monkeypatch: pytest.MonkeyPatch, address: str | None
) -> None:
    fake = FakeRay(monkeypatch)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    more = [f"ray_init.address={address}"] if address else []
    verl = ["+ray_kwargs.ray_init.runtime_env.env_vars.NCCL_DEBUG=INFO", "ray_init.env_vars.LIMIT=7"]
    RayController(compose_config([*verl, *more]), "cpu")
    (options,) = fake.calls
    assert options["runtime_env"] == {"env_vars": {"NCCL_DEBUG": "INFO", "LIMIT": "7"}}


def test_variables_for_a_cluster_that_runs_already_are_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    RayController(compose_config(["ray_init.env_vars.LIMIT=7"]), "cpu")
    assert "ray_init.env_vars has no effect" in caplog.text


def test_the_workers_of_a_run_have_its_priority(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray gives them a low one, with which every other program on the machine delays each operation."""
    fake = FakeRay(monkeypatch)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    RayController(RunConfig(), "cpu")
    assert fake.calls[0]["_system_config"]["worker_niceness"] == 0
