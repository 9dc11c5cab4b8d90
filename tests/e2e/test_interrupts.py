"""What a running job survives: signals, a full disk, workers that die, environments that fail, a cluster that
is not its own.

Faults come from a user's package: its environment and its advantage estimator run in the driver, in the
middle of a step, so that no test has to guess when that is.
"""

import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from agent_system.rollout import TooManyFailuresError
from tests.e2e.conftest import Run, read_metrics, titles_below, weights
from tests.forked import ForkServer
from tests.house.source import ROOT
from verl.trainer.ppo.interrupt import StoppedAtOnce
from verl.utils.checkpoint import CheckpointError

FAULTS = '''
"""my_flow in a world, and with an estimator, that do harm in step 2: the file `fault` beside this one holds <phase>:<fault>."""

import functools
import os
import resource
import signal
import threading
import time
from pathlib import Path

import psutil

import my_flow_package
from agent_system.environment import Observation
from agent_system.registry import EnvRegistry
from tests.waiting import send_signal
from verl.trainer.ppo.core_algos import compute_grpo_outcome_advantage, register_adv_est, register_policy_loss

state = {"steps": 0, "harmed": 0, "losses": 0}


def harm(fault):
    state["harmed"] += 1
    if state["harmed"] > 1 and fault != "raise_all":
        return
    if fault == "SIGTERM":
        send_signal(signal.SIGTERM)
    elif fault == "SIGKILL":
        os.kill(os.getpid(), signal.SIGKILL)
    elif fault == "ctrl_c":  # of all processes of the terminal
        send_signal(signal.SIGINT, send=lambda number: os.killpg(os.getpgrp(), number))
    elif fault == "twice":  # two signals that wait for the main thread are one
        send_signal(signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
    elif fault == "full_disk":
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
    elif fault in ("raise_one", "raise_all"):
        raise KeyError("the world broke")
    elif fault == "hang_one":
        time.sleep(120)
    elif fault.endswith("Workers"):  # the one that takes its place as well
        threading.Thread(target=hunt, args=(fault[:-1],), daemon=True).start()
    elif fault.endswith("Worker"):
        host = psutil.Process(int(os.environ["STARTS_WORKERS"]))
        kill_one(host, f"ray::{fault}")


def kill_one(host, title):
    for process in host.children(recursive=True):
        try:
            if title in " ".join(process.cmdline()):
                process.kill()
                process.wait(30)
                return True
        except psutil.Error:  # it has just ended
            continue
    return False


def hunt(kind):
    host, killed = psutil.Process(int(os.environ["STARTS_WORKERS"])), 0
    while killed < 2:
        killed += kill_one(host, f"ray::{kind}")
        time.sleep(0.1)


def phase_and_fault():
    return Path(__file__).with_name("fault").read_text().split(":")


class Harmful(my_flow_package.MyWorld):
    def reset(self, task):
        phase, fault = phase_and_fault()
        if (phase, state["steps"]) in (("collect", 1), ("validate", 2)):
            harm(fault)
        return Observation(task.prompt)


@EnvRegistry.register("harmful_world")
class HarmfulWorld(Harmful):
    blocking = False


@EnvRegistry.register("slow_world")
class SlowWorld(Harmful):
    blocking = True


@register_adv_est("harmful")
@functools.wraps(compute_grpo_outcome_advantage, assigned=())
def harmful(*args, **kwargs):
    state["steps"] += 1
    phase, fault = phase_and_fault()
    if phase == "update" and state["steps"] == 2:
        harm(fault)
    return compute_grpo_outcome_advantage(*args, **kwargs)


@register_policy_loss("harmful_loss")
@functools.wraps(my_flow_package.my_loss, assigned=())
def harmful_loss(*args, **kwargs):  # once a step, in the worker that trains
    state["losses"] += 1
    phase, fault = phase_and_fault()
    if phase == "loss" and state["losses"] == 2:
        harm(fault)
    return my_flow_package.my_loss(*args, **kwargs)
'''
CLUSTER = """
import sys, ray
none_in_advance = {"prestart_worker_first_driver": False}
options = {"object_store_memory": 100 * 2**20, "log_to_driver": False, "_system_config": none_in_advance}
ray.init(address="local", num_cpus=2, include_dashboard=False, **options)
print("address", ray.get_runtime_context().gcs_address, flush=True)
@ray.remote(num_cpus=0)
def alive():
    return "alive"
for line in sys.stdin:
    print(ray.get(alive.remote(), timeout=60), flush=True)
ray.shutdown()
"""
HARM = {
    "env.env_name": "harmful_world",
    "algorithm.adv_estimator": "harmful",
    "agent.plugins": "[my_flow_package,faults_package]",
}
STEPS = {
    "trainer.total_training_steps": 3,
    "trainer.save_freq": 1,
    "trainer.val_before_train": False,
    "data.val_files": "[]",
}
# A cluster that `ray.init` starts asks for a token; who joins it has to say so.
TOKEN = {"RAY_AUTH_MODE": "token"}
DONE = {"asker", "verifier_agent"}


def on_the_cluster(test: Any) -> Any:
    """Long tests that share a cluster: one process, beside the rest of the file."""
    return pytest.mark.spread(pytest.mark.xdist_group("cluster")(test))


@pytest.fixture
def faults(user_package: Path, train: Run) -> Iterator[Callable[..., Any]]:
    """Train in this process with a fault in step 2 (None for none); the module's count of steps
    starts anew.
    """
    (user_package / "faults_package.py").write_text(FAULTS)
    unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)

    def go(fault: str | None, changes: Mapping[str, Any] | None = None) -> Any:
        sys.modules.get("faults_package", train).__dict__.get("state", {}).update(steps=0, harmed=0)
        (user_package / "fault").write_text(fault or "never:none")
        return train(HARM | STEPS | dict(changes or {}))

    yield go
    resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)


@pytest.fixture(scope="module")
def finished() -> dict[str, tuple[Path, Any]]:
    """Folder and trainer of every run in which nothing happened."""
    return {}


@pytest.fixture
def uninterrupted(
    faults: Callable[..., Any], tmp_path: Path, finished: dict[str, tuple[Path, Any]]
) -> Callable[[Mapping[str, Any]], tuple[Path, Any]]:
    """Train with changes and without a fault, once for all tests; returns (folder, trainer)."""

    def go(changes: Mapping[str, Any]) -> tuple[Path, Any]:
        if (key := str(changes)) not in finished:
            finished[key] = (
                tmp_path / "whole",
                faults(None, dict(changes) | {"trainer.default_local_dir": tmp_path / "whole"}),
            )
        return finished[key]

    return go


def saved(run_dir: Path) -> int:
    """The step that the pointer names."""
    return int((run_dir / "checkpoints" / "latest_checkpointed_iteration.txt").read_text())


# ---- in one process


@pytest.mark.parametrize(("fault", "kept"), [("collect:SIGTERM", 1), ("update:SIGTERM", 2)])
def test_a_signal_checkpoints_the_last_finished_step_and_the_run_resumes_as_if_nothing_had_been(
    faults: Callable[..., Any],
    uninterrupted: Callable[..., tuple[Path, Any]],
    tmp_path: Path,
    fault: str,
    kept: int,
) -> None:
    rarely = {"trainer.save_freq": -1}
    whole, _ = uninterrupted(rarely)
    stopped = faults(fault, rarely)
    assert stopped.stopped_by == signal.SIGTERM
    assert stopped.progress.global_step == kept == saved(tmp_path / "run")
    assert [line["step"] for line in read_metrics(tmp_path / "run")] == list(range(1, kept + 1))
    assert faults(None, rarely).stopped_by is None
    assert weights(tmp_path / "run", 3) == weights(whole, 3)
    assert [line["step"] for line in read_metrics(tmp_path / "run")] == [1, 2, 3]


@pytest.mark.parametrize("fault", ["update:SIGTERM", "validate:SIGTERM", "validate:raise_all"])
def test_what_ends_the_last_validation_costs_that_alone_and_the_next_start_makes_up_for_it(
    faults: Callable[..., Any],
    uninterrupted: Callable[..., tuple[Path, Any]],
    tmp_path: Path,
    tasks: str,
    fault: str,
) -> None:
    two = {
        "trainer.total_training_steps": 2,
        "trainer.save_freq": -1,
        "trainer.val_before_train": True,
        "data.val_files": tasks,
    }
    _, whole = uninterrupted(two)
    if fault.endswith("SIGTERM"):
        stopped = faults(fault, two)
        assert (stopped.stopped_by, stopped.progress.after) == (signal.SIGTERM, None)
    else:
        with pytest.raises(TooManyFailuresError):
            faults(fault, two)
    assert saved(tmp_path / "run") == 2
    made_up, again = faults(None, two), faults(None, two)
    assert made_up.stopped_by is None
    assert made_up.progress.before.table == whole.progress.before.table
    assert made_up.progress.after.table == again.progress.after.table == whole.progress.after.table
    validations = [
        line["step"]
        for line in read_metrics(tmp_path / "run")
        if any(key.startswith("val-core") for key in line)
    ]
    assert validations == [0, 2]


@pytest.mark.parametrize("phase", ["collect", "update"])
def test_a_second_signal_stops_at_once_and_leaves_the_last_checkpoint(
    faults: Callable[..., Any], tmp_path: Path, phase: str
) -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(StoppedAtOnce, match="SIGTERM for the second time") as stopped:
        faults(f"{phase}:twice")
    assert stopped.value.number == signal.SIGTERM
    assert saved(tmp_path / "run") == 1
    assert set(weights(tmp_path / "run", 1)) == DONE
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_disk_that_fills_up_keeps_the_last_checkpoint(faults: Callable[..., Any], tmp_path: Path) -> None:
    with pytest.raises(
        CheckpointError, match=r"checkpoint of step 2 could not be written .* the previous one is intact"
    ):
        faults("update:full_disk")
    assert saved(tmp_path / "run") == 1
    assert sorted(p.name for p in (tmp_path / "run" / "checkpoints").iterdir()) == [
        "global_step_1",
        "latest_checkpointed_iteration.txt",
    ]
    assert [line["step"] for line in read_metrics(tmp_path / "run")] == [1, 2]


def test_failed_episodes_are_counted_and_left_out(faults: Callable[..., Any], tmp_path: Path) -> None:
    faults("collect:raise_one", {"rollout.max_failure_rate": 0.5})
    calls = {line["step"]: line["agent/asker/calls"] for line in read_metrics(tmp_path / "run")}
    assert calls == {1: 6, 2: 5, 3: 6}


def test_too_many_failed_episodes_stop_the_run_with_their_causes(
    faults: Callable[..., Any], tmp_path: Path
) -> None:
    with pytest.raises(
        TooManyFailuresError,
        match=r"rollout.max_failure_rate=0.5(.|\n)*x KeyError: 'the world broke' \(faults_package",
    ):
        faults("collect:raise_all", {"rollout.max_failure_rate": 0.5})
    assert saved(tmp_path / "run") == 1


def test_an_environment_that_hangs_costs_its_episode_only(
    faults: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent_system.rollout.clock.REPLY_S", 0.05)  # a slow engine ends no other episode
    start = time.monotonic()
    faults(
        "collect:hang_one",
        {"env.env_name": "slow_world", "rollout.episode_timeout_s": 3, "rollout.max_failure_rate": 0.5},
    )
    assert time.monotonic() - start < 110, "not the 120 s of the world"
    assert {line["step"]: line["agent/asker/calls"] for line in read_metrics(tmp_path / "run")}[2] == 5


# ---- with Ray, as a command


TRAINER = (sys.executable, "-m", "verl.trainer.main_ppo")


class Command:
    """A run of ours in a session of its own; its processes and theirs are found by a mark in the
    environment.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self.mark = uuid.uuid4().hex
        env = {**os.environ, **environment, "VERL_TEST_MARK": self.mark}
        self.process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=env,
            start_new_session=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )

    def end(self, within_s: float = 180) -> tuple[int, list[str]]:
        """Exit status, and the errors on stderr: a line each, with its indented causes."""
        _, said = self.process.communicate(timeout=within_s)
        assert "Traceback" not in said, said
        return self.process.returncode, re.findall(r"^error: .*(?:\n  .*)*", said, flags=re.MULTILINE)

    def left(self, within_s: float) -> list[str]:
        """Command lines of what still lives after so many seconds at most."""
        deadline = time.monotonic() + within_s
        while (alive := self._alive()) and time.monotonic() < deadline:
            time.sleep(0.2)
        return [" ".join(p.info["cmdline"] or [])[:120] for p in alive]

    def _alive(self) -> list[psutil.Process]:
        found = []
        for process in psutil.process_iter(["cmdline"]):
            try:
                if (
                    process.status() != psutil.STATUS_ZOMBIE
                    and process.environ().get("VERL_TEST_MARK") == self.mark
                ):
                    found.append(process)
            except psutil.Error:
                continue
        return found


@pytest.fixture
def command(
    overrides: Callable[..., list[str]], user_package: Path, tmp_path: Path
) -> Iterator[Callable[..., Command]]:
    """Start the real command, or a script that ends in it, with a fault in step 2."""
    (user_package / "faults_package.py").write_text(FAULTS)
    path = os.pathsep.join([str(user_package), str(ROOT)])
    started: list[Command] = []

    def go(
        fault: str,
        changes: Mapping[str, Any] | None = None,
        program: Sequence[str] = TRAINER,
        **variables: str,
    ) -> Command:
        ray = {"trainer.controller": "ray", "agent.specialization": "prompt", "trainer.save_hf_model": False}
        (user_package / "fault").write_text(fault)
        environment = {"PYTHONPATH": path} | TOKEN | variables
        started.append(Command([*program, *overrides(HARM | STEPS | ray | dict(changes or {}))], environment))
        return started[-1]

    yield go
    for run in started:
        for process in run._alive():
            process.kill()


@pytest.fixture(scope="module")
def cluster() -> Iterator[subprocess.Popen[str]]:
    """A Ray cluster of another process; a line on stdin is answered `alive`."""
    host = subprocess.Popen(
        [sys.executable, "-c", CLUSTER],
        env=os.environ | TOKEN,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    yield host
    assert host.stdin is not None
    host.stdin.close()
    host.wait(timeout=240)


@pytest.fixture(scope="module")
def address(cluster: subprocess.Popen[str]) -> str:
    assert cluster.stdout is not None
    return next(line.split()[1] for line in cluster.stdout if line.startswith("address"))


def answers(cluster: subprocess.Popen[str]) -> bool:
    assert cluster.stdin is not None
    assert cluster.stdout is not None
    cluster.stdin.write("?\n")
    cluster.stdin.flush()
    return cluster.stdout.readline().strip() == "alive"


@pytest.fixture
def on_cluster(
    command: Callable[..., Command], forked_python: str, fork_server: ForkServer, address: str
) -> Callable[..., Command]:
    """As `command`, on the cluster; the command and its workers are forked."""
    variables = {"STARTS_WORKERS": str(fork_server.process.pid)} | ForkServer.workers(forked_python)
    trainer = (forked_python, *TRAINER[1:])
    return lambda fault, changes: command(
        fault, changes | {"ray_init.address": address}, trainer, **variables
    )


def our_actors(fork_server: ForkServer, within_s: float = 60.0) -> list[str]:
    """Workers of ours that still run on the cluster after so many seconds at most."""
    deadline = time.monotonic() + within_s
    while True:
        lines = [line for _, line in titles_below(fork_server.process.pid)]
        ours = [line for line in lines if "ray::PolicyWorker" in line or "ray::RolloutWorker" in line]
        if not ours or time.monotonic() > deadline:
            return ours
        time.sleep(0.2)


@pytest.mark.ray
@pytest.mark.spread
@pytest.mark.timeout(900)
@pytest.mark.skipif(not (ROOT / ".venv").is_dir(), reason="needs the environment of scripts/setup.sh")
def test_ctrl_c_under_a_script_checkpoints_and_leaves_no_process(
    command: Callable[..., Command], tmp_path: Path, tiny_model_dir: Path
) -> None:
    for split in ("train", "test"):
        (tmp_path / f"{split}.parquet").touch()
    script = ("bash", "examples/run_math.sh")
    team = {
        "agent.orchestra_type": "math",
        "agent.agent_ids": "[Solver Agent,Verifier Agent]",
        "data.max_prompt_length": 512,
    }
    run = command(
        "collect:ctrl_c",
        team | {"trainer.save_freq": -1},
        program=script,
        MODEL_PATH=str(tiny_model_dir),
        DATA=str(tmp_path),
    )
    assert run.end() == (130, [])
    assert run.left(60) == []
    assert saved(tmp_path / "run") == 1


@pytest.mark.ray
@pytest.mark.spread
@pytest.mark.timeout(900)
def test_sigterm_in_the_update_and_a_second_run_without_ray_end_as_one_uninterrupted_run(
    command: Callable[..., Command],
    faults: Callable[..., Any],
    tmp_path: Path,
    forked_python: str,
    fork_server: ForkServer,
) -> None:
    rarely = {"trainer.save_freq": -1, "trainer.save_hf_model": True}
    run = command(
        "update:SIGTERM", rarely, (forked_python, *TRAINER[1:]), **ForkServer.workers(forked_python)
    )
    assert run.end() == (143, [])
    assert run.left(60) == []
    assert our_actors(fork_server) == []
    assert saved(tmp_path / "run") == 2
    shared = rarely | {"agent.specialization": "prompt"}
    faults(None, shared)
    faults(None, shared | {"trainer.default_local_dir": tmp_path / "whole"})
    assert weights(tmp_path / "run", 3) == weights(tmp_path / "whole", 3)


@pytest.mark.ray
@pytest.mark.spread
def test_a_killed_driver_leaves_no_process(command: Callable[..., Command], tmp_path: Path) -> None:
    run = command("update:SIGKILL")
    assert run.end() == (-signal.SIGKILL, [])
    assert run.left(120) == []
    assert saved(tmp_path / "run") == 1


@pytest.mark.ray
@on_the_cluster
@pytest.mark.timeout(900)
def test_a_foreign_cluster_outlives_a_stopped_run_and_the_one_that_goes_on_although_its_engine_dies_once(
    on_cluster: Callable[..., Command],
    faults: Callable[..., Any],
    cluster: subprocess.Popen[str],
    fork_server: ForkServer,
    tmp_path: Path,
) -> None:
    five = {"trainer.save_freq": -1, "trainer.save_hf_model": True, "trainer.total_training_steps": 5}
    run = on_cluster("update:ctrl_c", five)
    assert run.end() == (130, [])
    assert run.left(60) == []
    assert our_actors(fork_server) == []
    assert answers(cluster)
    assert saved(tmp_path / "run") == 2
    resumed = on_cluster("collect:RolloutWorker", five)
    assert resumed.end(within_s=400) == (0, [])  # its engine starts twice
    assert our_actors(fork_server) == []
    assert answers(cluster)
    assert saved(tmp_path / "run") == 5
    assert [line["training/engine_restarts"] for line in read_metrics(tmp_path / "run")] == [0, 0, 0, 1, 1]
    faults(None, five | {"agent.specialization": "prompt", "trainer.default_local_dir": tmp_path / "whole"})
    assert weights(tmp_path / "run", 5) == weights(tmp_path / "whole", 5)


@pytest.mark.ray
@on_the_cluster
@pytest.mark.parametrize(
    ("fault", "ranks"),
    [("collect:RolloutWorkers", 1), ("update:PolicyWorker", 1), ("update:PolicyWorker", 2)],
)
def test_a_worker_that_dies_is_named_in_one_line_and_ends_the_run(
    on_cluster: Callable[..., Command],
    cluster: subprocess.Popen[str],
    fork_server: ForkServer,
    tmp_path: Path,
    fault: str,
    ranks: int,
) -> None:
    run = on_cluster(fault, {"trainer.n_gpus_per_node": ranks})
    status, errors = run.end()
    assert status == 1
    assert len(errors) == 1
    assert "\n" not in errors[0]
    assert fault.split(":")[1].removesuffix("s") in errors[0]
    assert run.left(60) == []
    assert our_actors(fork_server) == []
    assert answers(cluster)
    assert saved(tmp_path / "run") == 1


@pytest.mark.ray
@on_the_cluster
def test_a_disk_that_fills_up_under_a_worker_keeps_the_last_checkpoint(
    on_cluster: Callable[..., Command],
    user_package: Path,
    cluster: subprocess.Popen[str],
    fork_server: ForkServer,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    """The disk is full where the loss of an installed package is computed: its entry point is found on the
    command line and in workers.
    """
    installed = user_package / "faults-1.0.dist-info"
    installed.mkdir()
    request.addfinalizer(lambda: shutil.rmtree(installed))  # the folder is also that of other tests
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: faults\nVersion: 1.0\n")
    (installed / "entry_points.txt").write_text("[verl_mas.plugins]\nfaults = faults_package:HarmfulWorld\n")
    changes = {"agent.plugins": "[]", "actor_rollout_ref.actor.policy_loss.loss_mode": "harmful_loss"}
    run = on_cluster("loss:full_disk", changes)
    status, errors = run.end()
    assert status == 1
    assert len(errors) == 1
    assert re.search(r"checkpoint of step 2 could not be written .* the previous one is intact", errors[0])
    assert run.left(60) == []
    assert our_actors(fork_server) == []
    assert answers(cluster)
    assert saved(tmp_path / "run") == 1
