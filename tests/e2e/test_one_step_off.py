"""`async_training.mode=one_step_off`: the next step's episodes are collected during the updates, and the run
is still exact.
"""

import asyncio
import functools
import signal
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.docs.pages import anchors, pages
from tests.e2e.conftest import Run, read_metrics, weights
from tests.e2e.teams import ADAPTER, LEVELS, policies
from tests.e2e.test_training import without_clock
from tests.waiting import send_signal
from verl.protocol import DataProto
from verl.single_controller.worker_group import WorkerDiedError
from verl.trainer.ppo.collect.source import collect_step
from verl.trainer.ppo.collect.step_samples import NoSamplesError, StepSamples
from verl.trainer.ppo.ray_trainer import RayPPOTrainer
from verl.trainer.ppo.train_step import StepTrainer
from verl.utils.checkpoint import CheckpointError
from verl.utils.timer import Timer
from verl.workers.policy_worker import PolicyWorker
from verl.workers.rollout.server import RolloutWorker

ONE_STEP_OFF = {"async_training.mode": "one_step_off", "algorithm.rollout_correction.rollout_is": "token"}
# One policy: teams of several are compared with the schedule written by hand.
THREE = ONE_STEP_OFF | {
    "agent.specialization": "prompt", "trainer.total_training_steps": 3, "trainer.save_freq": 1,
    "trainer.max_ckpt_to_keep": 0,
    "trainer.test_freq": 2, "trainer.val_before_train": False,
}  # fmt: skip
TREE = {
    "rollout.sampling": "tree",
    "env.env_name": "my_forkable_world",
    "rollout.tree.k": 3,
    "env.rollout.n": 1,
    "reward.team_scope": "call",
}
VARIANTS: dict[str, dict[str, Any]] = {
    "parallel": {},
    "tree, adapters": TREE | {"agent.specialization": "lora"} | ADAPTER,
    "remax, one policy": {"algorithm.adv_estimator": "remax", "agent.specialization": "prompt"},
    "dynamic sampling": {
        "algorithm.filter_groups.metric": "seq_reward",
    },
}


def by_hand(trainer: RayPPOTrainer, steps: int) -> None:
    """The schedule without any concurrency: the samples of s+1 are collected before the update of s, which
    trains on those of s.
    """

    def collect(step: int) -> Any:
        return asyncio.run(
            collect_step(trainer.config, trainer.plan, trainer.collector, trainer.loader, step)
        )

    trainer.team.init_model(steps, steps)
    trainer.team.engines.sync_weights(0)
    samples = collect(1)
    for step in range(1, steps + 1):
        following = collect(step + 1) if step < steps else None
        batch, _ = trainer.steps.score(samples.batch, step, Timer())
        trainer.steps.update(batch, step, Timer())
        trainer.team.engines.sync_weights(step)
        trainer.progress.global_step = step
        samples = following
    trainer.checkpointer.save_if_new()


@pytest.mark.parametrize("variant", VARIANTS)
def test_it_equals_the_schedule_written_by_hand_to_the_last_bit(
    train: Run, tmp_path: Path, variant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when it goes on from the checkpoint of step 2, which has the samples of step 3."""
    keys = ONE_STEP_OFF | VARIANTS[variant] | {"trainer.total_training_steps": 3, "data.val_files": "null"}
    keys |= {"trainer.save_freq": 2, "trainer.max_ckpt_to_keep": 0}
    train(keys | {"trainer.default_local_dir": tmp_path / "ours"})
    resume = {
        "trainer.resume_mode": tmp_path / "ours" / "checkpoints" / "global_step_2",
    }
    train(keys | resume | {"trainer.default_local_dir": tmp_path / "resumed"})
    monkeypatch.setattr(RayPPOTrainer, "fit", lambda trainer: by_hand(trainer, 3))
    train(keys | {"trainer.default_local_dir": tmp_path / "hand"})
    assert policies(tmp_path / "ours", 3) and policies(tmp_path / "ours", 3) == policies(tmp_path / "hand", 3)
    assert (
        policies(tmp_path / "resumed", 3) == policies(tmp_path / "ours", 3) != policies(tmp_path / "ours", 2)
    )
    assert comparable(tmp_path / "resumed") == comparable(tmp_path / "ours", after=2)
    learning = [line for line in read_metrics(tmp_path / "ours") if "actor/lr" in line]
    assert [line["agent/asker/staleness/max"] for line in learning] == [0, 1, 1]
    idle = [line["rollouter/idle_ratio"] for line in learning]
    assert max(idle[:2]) < 1 and idle[2] > 0.99, "no episode is in progress in the last step"


@pytest.fixture
def whole(once: Callable[..., Path]) -> Path:
    """The folder of an uninterrupted run of three steps."""
    return once(THREE)


def comparable(run_dir: Path, after: int = 0) -> list[dict]:
    """The metrics of a run without its clock."""
    return [line for line in without_clock(read_metrics(run_dir)) if line["step"] > after]


def test_a_signal_in_the_update_keeps_the_samples_in_flight_and_the_resumed_run_equals_a_whole_one_to_the_last_bit(
    train: Run, tmp_path: Path, whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    update = StepTrainer.update

    def signalled(trainer: StepTrainer, batch: DataProto, step: int, *args: Any) -> Any:
        if step == 2:
            send_signal(signal.SIGTERM)
        return update(trainer, batch, step, *args)

    with monkeypatch.context() as patch:
        patch.setattr(StepTrainer, "update", signalled)
        stopped = train(THREE)
    assert (stopped.stopped_by, stopped.progress.global_step) == (signal.SIGTERM, 2)
    assert train(THREE).progress.global_step == 3
    assert weights(tmp_path / "run", 3) == weights(whole, 3)
    assert comparable(tmp_path / "run", after=2) == comparable(whole, after=2)


def test_episodes_are_played_while_policies_are_updated(train: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every reset of step 2 waits for the end of the update of step 1."""
    import my_flow_package

    updated, begun = threading.Event(), threading.Event()
    reset, update, sampled = my_flow_package.MyWorld.reset, StepTrainer.update, []

    def late(world: Any, task: Any) -> Any:
        sampled.append(task)
        if len(sampled) > 6:  # step 1 has two tasks of three episodes
            begun.set()
            assert updated.wait(60)
        return reset(world, task)

    def watched(trainer: StepTrainer, batch: DataProto, step: int, *args: Any) -> Any:
        metrics = update(trainer, batch, step, *args)
        assert begun.wait(60), "no episode of step 2 began during the update of step 1"
        updated.set()
        return metrics

    monkeypatch.setattr(my_flow_package.MyWorld, "reset", late)
    monkeypatch.setattr(my_flow_package.MyWorld, "blocking", True)
    monkeypatch.setattr(StepTrainer, "update", watched)
    train(
        ONE_STEP_OFF
        | {"data.val_files": "null", "trainer.total_training_steps": 2, "trainer.save_hf_model": False}
    )


def test_a_run_whose_next_step_has_no_samples_can_be_resumed(
    train: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def nothing(*args: Any) -> StepSamples:
        samples = await collect_step(*args)
        return samples if args[-1] == 1 else replace(samples, batch=None)

    with monkeypatch.context() as patch:
        patch.setattr("verl.trainer.ppo.collect.source.collect_step", nothing)
        with pytest.raises(NoSamplesError, match="step 2: no episode has a sample to train on"):
            train(THREE | {"trainer.save_hf_model": False})
    assert (
        train(
            THREE | {"trainer.save_hf_model": False, "trainer.total_training_steps": 2}
        ).progress.global_step
        == 2
    )


@pytest.mark.ray
def test_ray_equals_the_local_controller(train: Run, tmp_path: Path, whole: Path) -> None:
    train(THREE | {"trainer.controller": "ray"})
    assert weights(tmp_path / "run", 3) == weights(whole, 3)
    assert comparable(tmp_path / "run") == comparable(whole)


def test_a_checkpoint_of_another_mode_is_refused(train: Run, whole: Path) -> None:
    resume = {
        "trainer.resume_mode": whole / "checkpoints" / "global_step_2",
    }
    with pytest.raises(CheckpointError, match=r"async_training\.mode=one_step_off, this run has sync"):
        train(THREE | {"async_training.mode": "sync"} | resume)


def test_it_needs_a_correction(refused: Callable[[dict[str, Any]], str]) -> None:
    message = refused({"async_training.mode": "one_step_off"})
    assert message.startswith("async_training.mode=one_step_off trains on samples of older weights")
    assert (
        "rollout_correction.rollout_is" in message and "(docs/updates.md#sampler-against-trainer)" in message
    )
    assert "sampler-against-trainer" in anchors(pages()["docs/updates.md"])


def test_an_engine_that_dies_during_an_update_is_replaced_by_one_with_the_updated_weights(
    train: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first request of step 2, in the update of step 1, meets a dead engine: the replies come from the
    weights that step 2 trains.
    """
    import my_flow_package

    updating, died, dead = threading.Event(), threading.Event(), list[RolloutWorker]()
    reset, submit, update, begun = (
        my_flow_package.MyWorld.reset,
        RolloutWorker.submit,
        PolicyWorker.update_actor,
        [],
    )

    def late(world: Any, task: Any) -> Any:
        begun.append(task)
        assert len(begun) <= 6 or updating.wait(60)  # step 1 has two tasks of three episodes
        return reset(world, task)

    @functools.wraps(submit)
    def submitted(worker: RolloutWorker, *args: Any) -> Any:
        if updating.is_set() and not dead:
            dead.append(worker)
            died.set()
        if worker in dead:
            raise WorkerDiedError("submit met a dead process")
        return submit(worker, *args)

    @functools.wraps(update)
    def updated(worker: PolicyWorker, *args: Any) -> Any:
        updating.set()
        assert died.wait(60)
        return update(worker, *args)

    monkeypatch.setattr(my_flow_package.MyWorld, "reset", late)
    monkeypatch.setattr(my_flow_package.MyWorld, "blocking", True)
    monkeypatch.setattr(RolloutWorker, "submit", submitted)
    monkeypatch.setattr(PolicyWorker, "update_actor", updated)
    changes = {
        "agent.specialization": "full",
        "trainer.save_freq": -1,
        "trainer.save_hf_model": False,
        "data.val_files": "null",
    }
    train(THREE | changes | {"trainer.test_freq": 0} | LEVELS["L0"].changes)
    lines = [line for line in read_metrics(tmp_path / "run") if "actor/lr" in line]
    assert [line["training/engine_restarts"] for line in lines] == [1, 1, 1]
    assert [line["agent/asker/staleness/max"] for line in lines] == [0, 0, 1]
    differences = [line["training/rollout_probs_diff_max"] for line in lines]
    assert max(differences[:2]) < 1e-4 < differences[2], "the version tells which weights sampled"
