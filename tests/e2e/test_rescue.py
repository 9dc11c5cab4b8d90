"""A run that ends with an error saves its last completed step, and the run that goes on equals one without
the error.
"""

import asyncio
import json
import re
import resource
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from agent_system.launch.train import entry
from agent_system.rollout import TooManyFailuresError
from agent_system.rollout.collector import GroupPlayer
from agent_system.rollout.episode import Episode
from tests.e2e.conftest import Run, read_metrics
from tests.e2e.teams import LEVELS, policies
from tests.e2e.test_async_faults import QUICK
from tests.e2e.test_async_faults import kill as kill_process
from tests.e2e.test_engine_death import kill
from tests.e2e.test_fully_async import FRESH, check_ledger
from tests.e2e.test_one_step_off import ONE_STEP_OFF
from tests.forked import ForkServer
from verl.protocol import DataProto
from verl.trainer.config import RunConfig
from verl.trainer.ppo.collect.next_step import NextStep
from verl.trainer.ppo.credit.step_credit import CreditAssigner
from verl.trainer.ppo.group_calls import TeamError
from verl.trainer.ppo.train_step import StepTrainer
from verl.workers.policy_worker import PolicyWorker
from verl.workers.rollout.server import RolloutWorker

NEVER_SAVED = {
    "trainer.total_training_steps": 4, "trainer.save_freq": -1, "trainer.test_freq": 0,
    "trainer.val_before_train": False,
    "data.val_files": "[]", "env.rollout.n": 2,
}  # fmt: skip
MODES: dict[str, dict[str, Any]] = {"sync": {}, "one_step_off": ONE_STEP_OFF, "fully_async": FRESH}
STALE_NEVER_SAVED = QUICK | {"trainer.save_freq": -1}


def updating(patch: pytest.MonkeyPatch, step: int, do: Callable[[], None]) -> None:
    """Call `do` before the update of a step."""
    update = StepTrainer.update

    def watched(trainer: StepTrainer, batch: DataProto, number: int, *args: Any) -> Any:
        if number == step:
            do()
        return update(trainer, batch, number, *args)

    patch.setattr(StepTrainer, "update", watched)


def break_now(patch: pytest.MonkeyPatch) -> None:
    """Let every episode fail that begins."""
    import my_flow_package

    def broken(world: Any, task: Any) -> Any:
        raise KeyError("the world broke")

    patch.setattr(my_flow_package.MyWorld, "reset", broken)


def break_worlds(patch: pytest.MonkeyPatch, step: int) -> None:
    """Let every episode fail that begins after the update of a step has begun."""
    updating(patch, step, lambda: break_now(patch))


def break_credit(patch: pytest.MonkeyPatch, step: int) -> None:
    """Let the credit of the step after `step` end with an error when it has changed its state and the
    batch.
    """
    score = CreditAssigner.score

    def scored(credit: CreditAssigner, batch: Any, timer: Any, version: int) -> Any:
        result = score(credit, batch, timer, version)
        if version == step:
            raise TimeoutError("waited 1 s for log-probs")
        return result

    patch.setattr(CreditAssigner, "score", scored)


def folder_of(run_dir: Path, step: int) -> Path:
    return run_dir / "checkpoints" / f"global_step_{step}"


def read(run_dir: Path, step: int) -> list[str]:
    return (run_dir / "trajectories" / f"train_{step:06d}.jsonl").read_text().splitlines()


def saved(run_dir: Path) -> list[str]:
    return sorted(path.name for path in (run_dir / "checkpoints").glob("*"))


@pytest.mark.parametrize(
    ("mode", "fault"),
    [
        ("sync", break_worlds),
        ("sync", break_credit),
        ("one_step_off", break_credit),
        ("fully_async", break_worlds),
        ("fully_async", break_credit),
    ],
)
def test_the_last_step_is_saved_and_the_resumed_run_equals_an_undisturbed_one_to_the_last_bit(
    train: Run, tmp_path: Path, once: Callable[..., Path], mode: str, fault: Callable[..., None]
) -> None:
    keys = NEVER_SAVED | MODES[mode] | {"algorithm.adv_estimator": "rae"}
    whole = once(keys)
    with pytest.MonkeyPatch.context() as patch:
        fault(patch, 2)
        with pytest.raises((TooManyFailuresError, TimeoutError)) as error:
            train(keys)
    assert error.value.__notes__ == [
        f"step 2 is saved in {folder_of(tmp_path / 'run', 2)}; the same command continues from it"
    ]
    assert fault is break_credit or re.search(
        r"x KeyError: 'the world broke' .*, in step3/toy:", str(error.value)
    )
    train(keys)
    assert policies(tmp_path / "run", 4) and policies(tmp_path / "run", 4) == policies(whole, 4)
    assert [line["step"] for line in read_metrics(tmp_path / "run")] == [1, 2, 3, 4]


def test_samples_that_cannot_be_collected_beside_an_update_cost_no_update_and_no_task(
    train: Run, tmp_path: Path, once: Callable[..., Path]
) -> None:
    keys = NEVER_SAVED | ONE_STEP_OFF | {"algorithm.adv_estimator": "rae"}
    whole, begins = once(keys), NextStep.update_begins
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            NextStep,
            "update_begins",
            lambda source, step, last: (step == 2 and break_now(patch), begins(source, step, last)),
        )
        with pytest.raises(TooManyFailuresError) as error:
            train(keys)
    assert error.value.__notes__[0].startswith("step 2 is saved in ")
    train(keys)
    tasks = [
        {line["uid"] for line in map(json.loads, read(folder, 3))} for folder in (whole, tmp_path / "run")
    ]
    assert tasks[0] == tasks[1]


@pytest.mark.parametrize("mode", ["sync", "fully_async"])
def test_an_engine_that_dies_twice_costs_no_update(
    train: Run, tmp_path: Path, once: Callable[..., Path], mode: str
) -> None:
    """It dies when it gets the first policy's weights of step 2, before the other adapter on the same base is
    updated.
    """
    keys = NEVER_SAVED | MODES[mode] | LEVELS["L2"].changes
    whole = once(keys)
    with pytest.MonkeyPatch.context() as patch:
        updating(patch, 2, lambda: kill(patch, RolloutWorker, "update_weights", *range(1, 100)))
        with pytest.raises(
            TeamError, match="died and could not be restarted: update_weights met a dead process"
        ) as error:
            train(keys)
    assert error.value.__notes__ == [
        f"step 2 is saved in {folder_of(tmp_path / 'run', 2)}; the same command continues from it"
    ]
    train(keys)
    assert policies(tmp_path / "run", 4) and policies(tmp_path / "run", 4) == policies(whole, 4)


@pytest.mark.parametrize("level", ["L1", "L3"])
def test_groups_in_progress_and_complete_ones_are_saved_when_a_world_hangs(
    train: Run, tmp_path: Path, level: str
) -> None:
    """With a model per agent (L3) one may be a step ahead of the other when the error comes."""
    import my_flow_package

    async def deaf(world: Any, action: str) -> None:
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(600)
        await asyncio.sleep(600)

    limits, keys = (
        {"rollout.episode_timeout_s": 1, "rollout.call_timeout_s": 1},
        STALE_NEVER_SAVED | LEVELS[level].changes,
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(GroupPlayer, "limit_s", 1.0)  # before the episodes are abandoned
        patch.setattr("agent_system.rollout.clock.REPLY_S", 0.05)  # a slow engine ends no other episode
        updating(patch, 2, lambda: patch.setattr(my_flow_package.MyWorld, "step", deaf))
        with pytest.raises(
            TimeoutError, match=r"^step \d waited 3 s for groups in progress: step\d/toy:\d+/0, step\d"
        ) as error:
            train(keys | limits)
    found = re.fullmatch(
        r"step (\d) is saved in (.*); the same command continues from it", error.value.__notes__[0]
    )
    assert found is not None and int(found[1]) >= 2
    queue = json.loads((Path(found[2]) / "groups" / "queue.json").read_text())["queue"]
    states = Counter(group["state"] for group in queue["groups"])
    assert states["running"]
    assert queue["dispatched"] == queue["ended"]["trained"] + states["running"] + states["complete"]
    train(keys)
    check_ledger(tmp_path / "run", 6)


@pytest.fixture
def full_disk() -> Iterator[Callable[[], None]]:
    """Let no file grow beyond 50 kB."""
    unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, unlimited[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)


@pytest.mark.parametrize("mode", ["sync", "fully_async"])
def test_a_full_disk_hides_neither_the_error_nor_an_earlier_checkpoint(
    train: Run, tmp_path: Path, full_disk: Callable[[], None], mode: str
) -> None:
    keys, run_dir = NEVER_SAVED | MODES[mode] | {"trainer.save_freq": 2}, tmp_path / "run"
    with pytest.MonkeyPatch.context() as patch:
        break_worlds(patch, 3)
        updating(patch, 3, full_disk)
        with pytest.raises(TooManyFailuresError) as error:
            train(keys)
    (note,) = error.value.__notes__
    assert "\n" not in note
    assert note.startswith(
        f"step 3 could not be saved: checkpoint of step 3 could not be written to {run_dir / 'checkpoints'}: "
    )
    assert note.endswith(
        f"; the last checkpoint is {folder_of(run_dir, 2)}; the same command continues from it"
    )
    assert saved(run_dir) == ["global_step_2", "latest_checkpointed_iteration.txt"]


@pytest.mark.parametrize("mode", ["sync", "one_step_off"])
def test_nothing_is_saved_in_the_middle_of_an_update(train: Run, tmp_path: Path, mode: str) -> None:
    """One of two policies has been updated when the other one fails; episodes of the next step are in
    progress, if the mode has them.
    """
    keys, run_dir = NEVER_SAVED | MODES[mode] | LEVELS["L3"].changes, tmp_path / "run"
    run, begun = Episode.run, threading.Event()

    async def held(episode: Episode) -> None:
        if episode.spec.step == 4:
            begun.set()
            await asyncio.sleep(600)
        await run(episode)

    def fail() -> None:
        assert mode == "sync" or begun.wait(60)
        kill(patch, PolicyWorker, "update_actor", 2)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Episode, "run", held)
        updating(patch, 3, fail)
        with pytest.raises(TeamError, match="update_actor met a dead process") as error:
            train(keys | {"trainer.save_freq": 1, "trainer.max_ckpt_to_keep": 1})
    (note,), uid = error.value.__notes__, r"toy:\d+/0"
    assert re.fullmatch(
        "step 3 was being updated, so the policies have not all completed the same step; the last checkpoint "
        f"is {folder_of(run_dir, 2)}; the same command continues from it; groups of that step: step3/{uid}, "
        f"step3/{uid}; in progress: {'none' if mode == 'sync' else f'step4/{uid}, step4/{uid}'}",
        note,
    )
    assert saved(run_dir) == ["global_step_2", "latest_checkpointed_iteration.txt"]
    assert train(keys).progress.global_step == 4


@pytest.mark.parametrize("level", ["L1", "L3"])
def test_groups_of_a_failed_update_are_trained_unless_a_policy_has_newer_weights(
    train: Run, tmp_path: Path, level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The groups of step 3 begin when the checkpoint of step 2 has been written, without them."""
    run, played, checkpoint = Episode.run, list[str](), folder_of(tmp_path / "run", 2)
    keys = QUICK | FRESH | LEVELS[level].changes | {"trainer.total_training_steps": 3}

    async def held(episode: Episode) -> None:
        while episode.spec.step > 2 and not checkpoint.exists():
            await asyncio.sleep(0.01)
        played.append(episode.spec.uid)
        await run(episode)

    monkeypatch.setattr(Episode, "run", held)
    with pytest.MonkeyPatch.context() as patch:
        updating(patch, 3, lambda: kill(patch, PolicyWorker, "update_actor", 1 if level == "L1" else 2))
        with pytest.raises(TeamError, match="update_actor met a dead process") as error:
            train(keys)
    uids = list(dict.fromkeys(json.loads(line)["uid"] for line in read(tmp_path / "run", 3)))
    assert len(uids) == 2 and error.value.__notes__ == [
        "step 3 was being updated, so the policies have not all completed the same step; the last checkpoint "
        f"is {checkpoint}; the same command continues from it, {'with' if level == 'L1' else 'without'} the "
        f"groups that were complete; groups of that step: {', '.join(uids)}; in progress: none"
    ]
    train(keys)
    assert {played.count(uid) for uid in uids} == {3 if level == "L1" else 6}
    check_ledger(tmp_path / "run", 3)


def test_without_any_step_or_checkpoint_there_is_no_promise(train: Run, tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        break_credit(patch, 0)
        with pytest.raises(TimeoutError) as error:
            train(NEVER_SAVED)
    assert not hasattr(error.value, "__notes__") and saved(tmp_path / "run") == []
    with pytest.MonkeyPatch.context() as patch:
        updating(patch, 2, lambda: kill(patch, PolicyWorker, "update_actor", 1))
        with pytest.raises(TeamError) as failed:
            train(NEVER_SAVED)
    assert failed.value.__notes__[0].endswith(
        "the same step; no earlier step was saved, see trainer.save_freq"
    )


@pytest.mark.ray
@pytest.mark.timeout(600)
def test_a_rank_that_is_lost_is_named_and_the_earlier_checkpoint_continues(
    train: Run, tmp_path: Path, fork_server: ForkServer
) -> None:
    keys, run_dir = NEVER_SAVED | LEVELS["L1"].changes | {"trainer.save_freq": 2}, tmp_path / "run"
    score = CreditAssigner.score

    def scored(credit: CreditAssigner, batch: Any, timer: Any, version: int) -> Any:
        if version == 3:
            kill_process(fork_server, "PolicyWorker")
        return score(credit, batch, timer, version)

    old = {"actor_rollout_ref.actor.ppo_epochs": 2}  # the old log-probs of the dead rank are asked for
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CreditAssigner, "score", scored)
        with pytest.raises(
            TeamError, match=r"^worker group 'tiny_qwen3': worker policy_tiny_qwen3.* died while it ran "
        ) as error:
            train(keys | old | {"trainer.controller": "ray", "trainer.n_gpus_per_node": 2})
    (note,) = error.value.__notes__
    assert re.match(
        r"step 3 could not be saved: .*worker policy_tiny_qwen3.* died while it ran save_checkpoint", note
    )
    assert note.endswith(
        f"; the last checkpoint is {folder_of(run_dir, 2)}; the same command continues from it"
    )
    assert [name for name in saved(run_dir) if not name.startswith(".writing_")] == [
        "global_step_2",
        "latest_checkpointed_iteration.txt",
    ]
    assert train(keys | old).progress.global_step == 4
    assert not list((run_dir / "checkpoints").glob(".writing_*")), (
        "the next checkpoint removes what the living rank wrote"
    )


def test_the_command_line_says_where_to_continue(capfd: pytest.CaptureFixture[str]) -> None:
    def task(config: RunConfig) -> Any:
        error = TimeoutError("step 3 waited 1 s")
        error.add_note("step 2 is saved in x")
        raise error

    with pytest.raises(SystemExit):
        entry(task)(OmegaConf.structured(RunConfig))
    assert capfd.readouterr().err == "error: step 3 waited 1 s; step 2 is saved in x\n"
