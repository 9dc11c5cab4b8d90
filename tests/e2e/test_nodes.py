"""Two nodes of a Ray cluster, here two of one CPU each on one machine: workers on both meet, hand values over
and train as one rank.
"""

import os
import pickle
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray

from agent_system import EnvRegistry
from agent_system.env_workers import EnvSource, EnvWorkers
from agent_system.env_workers.ray_actor import RayWorker
from tests.e2e.conftest import Run, read_metrics, weights
from tests.single_controller.test_worker_group import Adder, batch
from verl.single_controller.ray import RayClassWithInitArgs, RayResourcePool, RayWorkerGroup
from verl.single_controller.ray.resource_pool import node_of
from verl.single_controller.ray.start import start_private_cluster
from verl.trainer.ppo.controller import RAY_SYSTEM_CONFIG, RayController, import_path

pytestmark = [pytest.mark.ray, pytest.mark.timeout(600)]
STORE = 100 * 2**20


class Located(Adder):
    def node(self) -> str:
        return str(ray.get_runtime_context().get_node_id())


@pytest.fixture(scope="module", autouse=True)
def ray_cluster(forked_python: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """This process's cluster, which a second node joins; each has room for one process of a worker group."""
    ray.shutdown()  # what other tests share
    said = tmp_path_factory.mktemp("node") / "said.txt"
    options = {
        "object_store_memory": STORE,
        "log_to_driver": False,
        "_system_config": dict(RAY_SYSTEM_CONFIG),
    }
    start_private_cluster(num_cpus=1, runtime_env={"py_executable": forked_python}, **options)
    join = [
        "start",
        f"--address={ray.get_runtime_context().gcs_address}",
        "--num-cpus=1",
        f"--object-store-memory={STORE}",
        "--block",
    ]
    with said.open("w") as log:
        command = [sys.executable, "-m", "ray.scripts.scripts", *join]
        node = subprocess.Popen(command, env=os.environ | {"RAY_AUTH_MODE": "token"}, stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + 120
        while sum(found["Alive"] for found in ray.nodes()) < 2:
            assert node.poll() is None and time.monotonic() < deadline, said.read_text()
            time.sleep(0.2)
        yield
    finally:
        with suppress(psutil.NoSuchProcess):
            for process in (*psutil.Process(node.pid).children(recursive=True), node):
                with suppress(psutil.NoSuchProcess):
                    process.kill()
        node.wait(20)
        ray.shutdown()


def test_workers_on_two_nodes_meet_and_hand_values_over() -> None:
    both = RayWorkerGroup(
        RayResourcePool([1, 1], use_gpu=False), RayClassWithInitArgs(Located), timeout_s=120
    )
    assert (
        set(both.execute_all_sync("node")) == {node["NodeID"] for node in ray.nodes()}
        and len(ray.nodes()) == 2
    )
    assert both.add(batch()).batch["out"].tolist() == [0.0, 1.0, 102.0, 103.0]
    assert [total for total, _ in both.all_reduce()] == [3.0, 3.0]
    (value, _), _ = both.give(1_000)
    assert isinstance(value, ray.ObjectRef) and both.take(value) == [499_500.0] * 2
    both.shutdown()


def wait_for_spread(limit_s: float = 60.0) -> None:
    """Wait until Ray spreads over both nodes: what an earlier test held there is returned later, and a full
    node is passed over.
    """
    node = ray.remote(num_cpus=0.1, scheduling_strategy="SPREAD")(
        lambda: ray.get_runtime_context().get_node_id()
    )
    deadline = time.monotonic() + limit_s
    while len(set(ray.get([node.remote(), node.remote()]))) < 2:
        assert time.monotonic() < deadline, ray.available_resources()
        time.sleep(0.2)


def test_environment_workers_are_on_both_nodes() -> None:
    """Each needs so little of a CPU that one node has room for both."""
    wait_for_spread()
    source, environment = pickle.dumps(EnvSource("plan_path")), {"PYTHONPATH": import_path()}
    started = EnvWorkers(EnvRegistry.get("plan_path"), 2, lambda: RayWorker(source, 0.1, environment))
    try:
        actors: list[Any] = [worker._transport._actor for worker in started._workers]  # type: ignore[attr-defined]
        found = ray.get(
            [actor.__ray_call__.remote(lambda _: ray.get_runtime_context().get_node_id()) for actor in actors]
        )
    finally:
        started.close()
    assert sorted(found) == sorted(node["NodeID"] for node in ray.nodes()) and len(found) == 2


def test_a_group_of_two_nodes_trains_as_one_rank(
    train: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("verl.trainer.ppo.controller.BUNDLE_CPUS", 1.0)  # so that a node has room for one
    train({"agent.specialization": "prompt"})
    spread = {"trainer.controller": "ray", "trainer.nnodes": 2, "agent.specialization": "prompt"}
    train({"trainer.default_local_dir": tmp_path / "two"} | spread)
    one, two = read_metrics(tmp_path / "run"), read_metrics(tmp_path / "two")
    for a, b in zip(one, two, strict=True):
        for name, far in (("actor/grad_norm", 1e-5), ("actor/pg_loss", 1e-6), ("critic/score/mean", 1e-6)):
            assert b.get(name, 0.0) == pytest.approx(a.get(name, 0.0), abs=far)


def test_an_engine_on_another_node_gets_the_weights_of_its_policy(
    train: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By broadcast, from an address that the other node reaches."""
    monkeypatch.setattr("verl.trainer.ppo.controller.BUNDLE_CPUS", 1.0)  # so that a node has room for one
    train({"agent.specialization": "prompt"})
    found: dict[str, tuple[str, str]] = {}
    spawn = RayController.spawn

    def noted(controller: RayController, name: str, *args: Any, **kwargs: Any) -> Any:
        group = spawn(controller, name, *args, **kwargs)
        (slot,) = group.resource_pool.slots()
        found[name.partition("_")[0]] = group._rendezvous[0], node_of(slot.placement_group)
        return group

    monkeypatch.setattr(RayController, "spawn", noted)
    apart = {"trainer.controller": "ray", "rollout.n_gpus_per_node": 1, "agent.specialization": "prompt"}
    train(
        {
            "trainer.default_local_dir": tmp_path / "two",
            "actor_rollout_ref.rollout.weight_transfer": "collective",
        }
        | apart
    )
    assert weights(tmp_path / "run", 2) == weights(tmp_path / "two", 2)
    addresses = {node["NodeID"]: node["NodeManagerAddress"] for node in ray.nodes()}
    (sender, here), (_, there) = found["policy"], found["rollout"]
    assert here != there and sender == addresses[here] != "127.0.0.1"
