"""What a run of `async_training.mode=fully_async` survives: a full disk, lost workers, worlds that hang or
always fail.
"""

import asyncio
import gc
import json
import resource
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from agent_system.environment import Observation
from agent_system.launch import collector
from agent_system.rollout import TooManyFailuresError
from agent_system.rollout.collector import GroupPlayer
from agent_system.rollout.episode import Episode
from tests.conftest import is_idle
from tests.e2e.conftest import Run, titles_below
from tests.e2e.teams import LEVELS
from tests.e2e.test_fully_async import STALE, check_ledger, steps_of
from tests.e2e.test_one_step_off import ONE_STEP_OFF
from tests.forked import ForkServer
from verl.protocol import DataProto
from verl.trainer.config.run import ASYNC_MODES
from verl.trainer.ppo import weight_sync
from verl.trainer.ppo.asynchronous.saved_groups import FOLDER, STATE
from verl.trainer.ppo.asynchronous.stream import GroupStream
from verl.trainer.ppo.group_calls import TeamError
from verl.trainer.ppo.train_step import StepTrainer
from verl.utils import loop_thread
from verl.utils.checkpoint import CheckpointError

FEW = {
    "data.val_files": "[]",
    "trainer.val_before_train": False,
    "trainer.test_freq": 0,
    "trainer.save_hf_model": False,
}
QUICK = STALE | FEW
# Two episodes at a time with longer replies: sampling takes longer than updates, so episodes are always in
# progress.
BUSY = QUICK | LEVELS["L1"].changes | {"rollout.max_concurrent_episodes": 2, "data.max_response_length": 48}


def test_a_disk_that_fills_up_while_groups_are_saved_keeps_the_checkpoint_before_and_no_group_is_lost(
    train: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save, limit, saves = collector.save_episodes, resource.getrlimit(resource.RLIMIT_FSIZE), list[Path]()

    def third_and_its_repetition_have_no_room(episodes: Any, folder: Path) -> None:
        saves.append(folder)
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (100 if len(saves) in (3, 4) else limit[0], limit[1]))
            save(episodes, folder)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limit)

    monkeypatch.setattr(collector, "save_episodes", third_and_its_repetition_have_no_room)
    checkpoints = tmp_path / "run" / "checkpoints"
    with pytest.raises(
        CheckpointError,
        match=f"checkpoint of step 3 could not be written to {checkpoints}: .* previous one is",
    ) as error:
        train(QUICK)
    assert "\n" not in str(error.value)
    assert error.value.__notes__[0].endswith(
        f"the last checkpoint is {checkpoints / 'global_step_2'}; the same command continues from it"
    )
    assert sorted(path.name for path in checkpoints.iterdir()) == [
        "global_step_1",
        "global_step_2",
        "latest_checkpointed_iteration.txt",
    ]
    train(QUICK)
    check_ledger(tmp_path / "run", 6)


# ---- worlds


@pytest.fixture
def hanging(
    train: Run, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[Callable[[int], bool]], list[float]]]:
    """Let the steps of tasks hang whose number, in the order in which they begin, is chosen; returns when
    they began to.
    """
    import my_flow_package

    over, numbers, began = threading.Event(), dict[str, int](), list[float]()
    world = my_flow_package.MyWorld

    def go(chosen: Callable[[int], bool]) -> list[float]:
        step = world.step

        def reset(self: Any, task: Any) -> Observation:
            self.hangs = chosen(numbers.setdefault(task.prompt, len(numbers)))
            return Observation(task.prompt)

        def hang(self: Any, action: str) -> Any:
            if self.hangs:
                began.append(time.time())
                over.wait(60)
            return step(self, action)

        monkeypatch.setattr(world, "blocking", True)
        monkeypatch.setattr(world, "reset", reset)
        monkeypatch.setattr(world, "step", hang)
        return began

    yield go
    over.set()


def test_a_world_that_hangs_holds_its_own_group_alone(
    train: Run,
    tmp_path: Path,
    hanging: Callable[..., list[float]],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Steps train on other groups until the time of its episodes is over; another task takes the place of its
    group.
    """
    import my_flow_package

    update, play, updates = StepTrainer.update, Episode.run, list[float]()
    episodes, loops, prompts = list[Episode](), list[asyncio.AbstractEventLoop](), set[str]()
    began = hanging(lambda number: number == 2)
    reset = my_flow_package.MyWorld.reset

    def noted(world: Any, task: Any) -> Observation:
        seen: Observation = reset(world, task)
        prompts.update([task.prompt] * world.hangs)
        return seen

    async def played(episode: Episode) -> None:
        loops.append(asyncio.get_running_loop())
        episodes.append(episode)
        await play(episode)

    def time_is_over() -> None:
        for episode in episodes:
            if not episode.over and episode.spec.task.prompt in prompts:
                episode.clock._timeout.reschedule(0.0)

    def updated(*args: Any) -> Any:
        """The time of the episodes that hang is over in the second update beside them, however long these
        take.
        """
        if len(began) == 3:
            updates.append(time.time())
            if len(updates) == 2:
                loops[0].call_soon_threadsafe(time_is_over)
        return update(*args)

    monkeypatch.setattr(my_flow_package.MyWorld, "reset", noted)
    monkeypatch.setattr(Episode, "run", played)
    monkeypatch.setattr(StepTrainer, "update", updated)
    train(QUICK | {"rollout.max_failure_rate": 0.5, "trainer.save_freq": 6})
    failed = [
        record.created
        for record in caplog.records
        if "waiting for the environment's step 1" in record.getMessage()
    ]
    assert len(began) == len(failed) == 3
    assert sum(max(began) < at < min(failed) for at in updates) >= 2
    assert steps_of(tmp_path / "run")[-1]["fully_async/count/failed"] == 1
    check_ledger(tmp_path / "run", 6, failing=True)


@pytest.fixture
def of_any_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine that is slow uses up little of the time of an episode, which is short here."""
    monkeypatch.setattr("agent_system.rollout.clock.REPLY_S", 0.05)


@pytest.mark.usefixtures("of_any_speed")
def test_worlds_that_all_hang_end_the_run_with_the_cause(
    train: Run, hanging: Callable[..., list[float]]
) -> None:
    hanging(lambda number: True)
    with pytest.raises(
        TooManyFailuresError,
        match=r"x TimeoutError: episode took longer than .*=1 s, waiting for the environment's step",
    ):
        train(QUICK | {"rollout.episode_timeout_s": 1})


@pytest.mark.usefixtures("of_any_speed")
def test_episodes_that_cannot_be_ended_are_named(train: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Code that swallows its cancellation outlasts the time limit of its episode."""
    import my_flow_package

    async def deaf(world: Any, action: str) -> None:
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(600)
        await asyncio.sleep(600)

    monkeypatch.setattr(my_flow_package.MyWorld, "step", deaf)
    monkeypatch.setattr(GroupPlayer, "limit_s", 1.0)  # before the episodes are abandoned
    with pytest.raises(
        TimeoutError, match=r"^step 1 waited 3 s for groups in progress: (step\d/toy:\d+/0(, |$)){4}$"
    ):
        train(QUICK | {"rollout.episode_timeout_s": 1, "rollout.call_timeout_s": 1})


@pytest.mark.usefixtures("of_any_speed")
@pytest.mark.parametrize("mode", ASYNC_MODES)
def test_an_episode_that_cannot_be_ended_costs_itself_alone_in_every_mode(
    train: Run, tmp_path: Path, mode: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    import my_flow_package

    step, begun = my_flow_package.MyWorld.step, list[str]()

    async def deaf_once(world: Any, action: str) -> Any:
        begun.append(action)
        for _ in range(2 if len(begun) == 1 else 0):
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(600)
        await asyncio.sleep(600 if begun[0] is action else 0)
        return step(world, action)

    monkeypatch.setattr(my_flow_package.MyWorld, "step", deaf_once)
    monkeypatch.setattr("agent_system.rollout.player.END_TIMEOUT_S", 0.5)
    keys = QUICK if mode == "fully_async" else ONE_STEP_OFF | FEW | {"async_training.mode": mode}
    train(keys | {"rollout.episode_timeout_s": 2, "rollout.max_failure_rate": 0.5})
    assert (
        sum(
            "ignored its cancellation after rollout.episode_timeout_s" in record.getMessage()
            for record in caplog.records
        )
        == 1
    )
    assert len(steps_of(tmp_path / "run")) == (6 if mode == "fully_async" else 2)


# ---- workers, killed under Ray


def kill(fork_server: ForkServer, kind: str) -> None:
    """Kill the last process of a class of workers."""
    found = [process for process, title in titles_below(fork_server.process.pid) if f"ray::{kind}" in title]
    found[-1].kill()
    found[-1].wait(30)


@pytest.mark.ray
@pytest.mark.timeout(600)
def test_a_rank_that_dies_in_an_update_ends_the_run_in_one_line_and_its_checkpoint_goes_on(
    train: Run, tmp_path: Path, fork_server: ForkServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    update, take, running, streams = StepTrainer.update, GroupStream.take, list[float](), list[GroupStream]()

    def mortal(trainer: StepTrainer, batch: DataProto, step: int, *args: Any) -> Any:
        if step == 2:
            running.append(streams[0].loop.call(lambda: len(streams[0].queue.of("running"))))
            kill(fork_server, "PolicyWorker")
        return update(trainer, batch, step, *args)

    steps = BUSY | {"trainer.total_training_steps": 3}
    with monkeypatch.context() as patch:
        patch.setattr(StepTrainer, "update", mortal)
        patch.setattr(GroupStream, "take", lambda self, *args: streams.append(self) or take(self, *args))
        with pytest.raises(
            TeamError, match=r"^worker group 'tiny_qwen3': worker policy_tiny_qwen3.* died while it ran "
        ) as error:
            train(steps | {"trainer.controller": "ray", "trainer.n_gpus_per_node": 2})
    assert "\n" not in str(error.value)
    assert error.value.__notes__[0].startswith("step 2 was being updated, so the policies have not all")
    assert running[0] > 0
    assert is_idle(within_s=20)
    train(steps)  # with one rank
    check_ledger(tmp_path / "run", 3)


@pytest.mark.ray
@pytest.mark.timeout(600)
def test_an_engine_that_is_killed_in_an_update_when_it_gets_weights_and_while_it_samples_is_replaced_each_time(
    train: Run, tmp_path: Path, fork_server: ForkServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    import my_flow_package

    update, load, act, kills = (
        StepTrainer.update,
        weight_sync.load_weights,
        my_flow_package.MyWorld.act,
        list[str](),
    )
    updated = 0

    def once(moment: str) -> None:
        if moment not in kills:
            kills.append(moment)
            kill(fork_server, "RolloutWorker")

    def in_update(trainer: StepTrainer, batch: DataProto, step: int, *args: Any) -> Any:
        nonlocal updated
        updated = step - 1
        if updated == 1:
            once("update")
        return update(trainer, batch, step, *args)

    def with_weights(engine: Any, buckets: Any, version: int, adapter: str | None) -> int:
        if version == 3:
            once("weights")
        return load(engine, buckets, version, adapter)

    def sampling(world: Any, agent_id: str, action: str) -> Any:
        if updated == 3:
            once("sampling")
        return act(world, agent_id, action)

    monkeypatch.setattr(StepTrainer, "update", in_update)
    monkeypatch.setattr(weight_sync, "load_weights", with_weights)
    monkeypatch.setattr(my_flow_package.MyWorld, "act", sampling)
    train(BUSY | {"trainer.controller": "ray", "trainer.total_training_steps": 5, "trainer.save_freq": 5})
    assert kills == ["update", "weights", "sampling"]
    last = steps_of(tmp_path / "run")[-1]
    assert (last["training/engine_restarts"], last["fully_async/count/failed"]) == (3, 0)
    check_ledger(tmp_path / "run", 5)


@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning", "ignore:coroutine .* was never awaited"
)
def test_an_episode_that_blocks_the_event_loop_ends_the_run_and_no_group_is_lost(
    train: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import my_flow_package

    act, begins, free = my_flow_package.MyWorld.act, GroupStream.update_begins, threading.Event()
    updating, complete = list[GroupStream](), list[set[int]]()

    def update_begins(stream: GroupStream, step: int, last: bool) -> None:
        updating[:] = [stream] if step > 1 else []
        begins(stream, step, last)

    def blocks_once(world: Any, agent_id: str, action: str) -> Any:
        groups = updating[0].queue.of("complete") if updating and not complete else []
        if groups:
            complete.append({group.index for group in groups})
            free.wait(60)
        return act(world, agent_id, action)

    monkeypatch.setattr(GroupStream, "update_begins", update_begins)
    monkeypatch.setattr(my_flow_package.MyWorld, "act", blocks_once)
    monkeypatch.setattr(loop_thread, "BLOCKED_S", 1.0)
    monkeypatch.setattr(loop_thread, "LOOK_S", 0.1)
    monkeypatch.setattr(loop_thread, "END_TIMEOUT_S", 0.2)
    keys = BUSY | {"trainer.save_freq": 50}
    with pytest.raises(
        TimeoutError,
        match=r"has been blocked for .* rollout.episode_timeout_s=4 s. It runs \S+/toy:\d+/\d+#\d+",
    ) as error:
        train(keys | {"rollout.episode_timeout_s": 4})
    free.set()
    (checkpoint,) = (tmp_path / "run" / "checkpoints").glob("global_step_*")
    assert error.value.__notes__[0].startswith(
        f"{checkpoint.name.replace('global_', '').replace('_', ' ')} is saved in {checkpoint}; "
    )
    saved = json.loads((checkpoint / FOLDER / STATE).read_text())["queue"]
    states = {group["index"]: group["state"] for group in saved["groups"]}
    assert complete[0] and {states.get(index) for index in complete[0]} == {"complete"}
    train(keys)
    check_ledger(tmp_path / "run", 6)
    gc.collect()  # of what the blocked loop never began, here where its warnings are expected


# ---- what is measured


def test_a_loop_that_is_blocked_and_an_engine_that_is_busy_at_the_end_are_recorded(
    train: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import my_flow_package

    act, calls = my_flow_package.MyWorld.act, list[str]()

    def slow_once(world: Any, agent_id: str, action: str) -> Any:
        calls.append(agent_id)
        if len(calls) == 5:
            time.sleep(0.7)
        return act(world, agent_id, action)

    monkeypatch.setattr(my_flow_package.MyWorld, "act", slow_once)
    train(BUSY | {"trainer.total_generated_tokens": 600, "trainer.save_freq": -1})
    steps = steps_of(tmp_path / "run")
    assert len(steps) < 6 and steps[-1]["fully_async/count/running"] > 0
    assert max(line["rollouter/loop_lag_s"] for line in steps) > 0.6
    spans = [json.loads(line) for line in (tmp_path / "run" / "timeline.jsonl").read_text().splitlines()]
    ends = {
        call: max(span["end"] for span in spans if span["call"] == call)
        for call in ("generate", "sync_weights")
    }
    assert ends["generate"] > ends["sync_weights"]
