"""Takes of steps that no policy was trained on are undone before a checkpoint, with what was left out and
dropped before them.
"""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Collection, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.waiting import wait_until
from verl.protocol import DataProto
from verl.trainer.config import RunConfig
from verl.trainer.plan.learners import Pace
from verl.trainer.plan.run import RunPlan
from verl.trainer.ppo.asynchronous.group_queue import Group
from verl.trainer.ppo.asynchronous.metrics import TICK_S
from verl.trainer.ppo.asynchronous.saved_groups import FOLDER, check_checkpoint
from verl.trainer.ppo.asynchronous.stream import GroupStream
from verl.trainer.ppo.collect.step_samples import StepSamples
from verl.trainer.ppo.interrupt import StopRequest
from verl.utils.checkpoint import CheckpointError
from verl.utils.dataset import TaskLoader
from verl.utils.loop_thread import LoopThread


@pytest.fixture
def loop() -> Iterator[LoopThread]:
    thread = LoopThread("test")
    yield thread
    thread.close()


def stream(loop: LoopThread, saved: list[Any]) -> GroupStream:
    """A stream without episodes in progress, whose collector keeps what it saves."""
    collector = SimpleNamespace(
        save_episodes=lambda episodes, folder: saved.extend(episodes),
        load_episodes=lambda folder: list(saved),
    )
    loader: Any = SimpleNamespace(state_dict=dict, load_state_dict=lambda state: None)
    pace = {"p": Pace(staleness=3.0, trigger=1, bound=9)}
    config = RunConfig()
    config.data.train_batch_size = 1
    config.async_training.max_off_policy_strategy = "drop"
    return GroupStream(config, RunPlan((), ()), collector, loader, loop, lambda *_: None, 9, pace, {})


def test_two_takes_are_undone_and_saved_with_what_was_dropped_before_them(
    loop: LoopThread, tmp_path: Path
) -> None:
    saved: list[Any] = []
    ours = stream(loop, saved)
    names = ["first", "second", "failed", "dropped", "third"]
    groups = [ours.queue.dispatch(task_index, 0, 0) for task_index in range(5)]
    for group, name in zip(groups, names, strict=True):
        group.sampled = (name,)  # type: ignore[assignment]
    ours.queue.move("complete", groups[0], groups[1], groups[4])
    assert ours.queue.take(1) == [groups[0]]
    ours.queue.move("failed", groups[2])
    assert ours.queue.take(2) == [groups[1]]
    ours.queue.move("dropped", groups[3])
    assert ours.queue.take(3) == [groups[4]]
    assert [group.taken_by for group in groups] == [1, 2, 2, 3, 3]
    counts = ours.metrics(1, 1.0)
    assert counts["fully_async/count/training"] == 2 and counts["fully_async/count/trained"] == 1

    ours.rewind(1)
    assert ours.queue.taken == 1 and ours.queue.counts()["trained"] == 1
    assert not ours.queue.of("training") and {group.taken_by for group in groups[1:]} == {None}
    ours.save(tmp_path)
    assert saved == ["second", "failed", "dropped", "third"] and (tmp_path / FOLDER).is_dir()
    again = stream(loop, saved)
    again.load(tmp_path)
    assert [group.sampled for group in again.queue.of("complete")] == [("second",), ("third",)]
    assert [(group.index, group.sampled) for group in again.queue.of("failed")] == [(2, ("failed",))]
    assert [(group.index, group.sampled) for group in again.queue.of("dropped")] == [(3, ("dropped",))]
    assert again.queue.counts() == ours.queue.counts() and again.queue.groups == ours.queue.groups


class Stream(GroupStream):
    """A stream whose episodes are names of groups, `step<s>.<attempt>/<task>`; without a signal unless the
    task is among `signal`.

    Those of the tasks `broken` fail.
    """

    def __init__(
        self,
        loop: LoopThread,
        config: RunConfig,
        pace: Pace,
        saved: list[Any],
        signal: Collection[int] = range(9),
    ) -> None:
        @asynccontextmanager
        async def groups(_window: int) -> AsyncIterator[Any]:
            async def play(task: Any, _n: int, *, step: int, attempt: int, number: int) -> list[Any]:
                await asyncio.sleep(self.play_s)
                self.seconds += 1.0
                uid = f"step{step}.{attempt}/{task.index}/{number}"
                failure = "KeyError: 'world'" if task.index in self.broken else None
                return [
                    SimpleNamespace(
                        uid=uid, task_id=task.task_id, failure=failure, reply_tokens=1, index=task.index
                    )
                ]

            uid = lambda task, **_: str(task.index)  # noqa: E731
            limits = {"limit_s": self.limit_s, "in_time": self.in_time}
            yield SimpleNamespace(
                play=play, uid=uid, rows=lambda episodes: episodes, set_open=lambda _: None, **limits
            )

        def save(episodes: list[Any], _folder: Path) -> None:
            saved[:] = episodes

        collector: Any = SimpleNamespace(
            groups=groups, save_episodes=save, load_episodes=lambda _: list(saved)
        )
        tasks = [SimpleNamespace(index=index, task_id=f"toy:{index}") for index in range(4)]
        loader = TaskLoader(tasks, config.data.train_batch_size, seed=0, shuffle=False)
        super().__init__(
            config, RunPlan((), ()), collector, loader, loop, lambda *_: None, 9, {"p": pace}, {}
        )
        self.play_s, self.limit_s, self.in_time = 0.01, 3.0, False
        self.signal, self.has_samples, self.taken_uids, self.broken = (
            signal,
            True,
            list[list[str]](),
            set[int](),
        )
        self.seconds = 0.0  # of a clock by which an episode takes one

    def _has_signal(self, player: Any, sampled: Any) -> bool:
        assert threading.current_thread().name != "test", (
            "the rewards of a group are computed beside the event loop"
        )
        return player.rows(sampled)[0].index in self.signal

    async def _samples(self, groups: Sequence[Group], step: int) -> StepSamples:
        if not self.queue.of("training", "failed", "rejected", step=step):
            return await super()._samples(groups, step)
        self.taken_uids.append([group.sampled[0].uid for group in groups])
        columns = {
            name: np.array([1], dtype=object) for name in ("replies", "partial_replies", "partial_span")
        }
        return StepSamples(DataProto.from_dict(non_tensors=columns) if self.has_samples else None, (), {}, 0)


def configured(filtered: bool, **keys: Any) -> RunConfig:
    config = RunConfig()
    config.data.train_batch_size, config.env.rollout.n = 2, 1
    config.async_training.mode, config.async_training.staleness_threshold = "fully_async", 0.0
    for name, value in keys.items():
        setattr(config.async_training, name, value)
    config.algorithm.filter_groups.metric = "seq_reward" if filtered else None
    config.algorithm.filter_groups.max_num_gen_batches = 1
    return config


FRESH = Pace(0.0, 1, 0)


def test_a_step_of_few_tasks_is_the_same_after_it_was_undone(loop: LoopThread, tmp_path: Path) -> None:
    """Dynamic sampling may draw one batch; it draws no second one for the step that is taken again."""
    saved: list[Any] = []
    first, again = (Stream(loop, configured(True), FRESH, saved, (0, 2)) for _ in range(2))
    first.published(0, ["p"])
    with StopRequest() as stop:
        first.take(1, stop)
        first.published(1, ["p"])
        first.take(2, stop)
        first.rewind(1)
        first.save(tmp_path)
        again.load(tmp_path)
        again.published(1, ["p"])
        again.take(2, stop)
    assert again.taken_uids == first.taken_uids[1:] == [["step2.0/2/0"]]


def test_groups_without_a_sample_do_not_come_back_after_a_rescue(loop: LoopThread, tmp_path: Path) -> None:
    saved: list[Any] = []
    first, again = (Stream(loop, configured(False), FRESH, saved) for _ in range(2))
    first.has_samples = False
    first.published(0, ["p"])
    with StopRequest() as stop:
        assert first.take(1, stop).batch is None
        first.rewind(0)
        first.save(tmp_path)
        assert {name: n for name, n in first.queue.counts().items() if n} == {"dispatched": 2, "failed": 2}
        again.load(tmp_path)
        again.published(0, ["p"])
        again.take(1, stop)
    assert (first.taken_uids, again.taken_uids) == (
        [["step1.0/0/0", "step1.0/1/0"]],
        [["step1.1/2/0", "step1.1/3/0"]],
    )


def test_weights_that_were_sent_for_an_undone_step_are_those_of_the_step_before(loop: LoopThread) -> None:
    ours = stream(loop, [])
    ours.published(2, ["p"])
    ours.rewind(1)
    assert ours.queue.versions == {"p": 1}


@pytest.mark.parametrize("in_time", [True, False])
def test_a_step_waits_for_episodes_that_are_slow_because_engines_are(loop: LoopThread, in_time: bool) -> None:
    config = configured(False)
    config.rollout.call_timeout_s, config.rollout.max_concurrent_episodes = 0.02, 4
    ours = Stream(loop, config, FRESH, [])
    ours.play_s, ours.limit_s, ours.in_time = 0.3 if in_time else 600.0, 0.02, in_time
    ours.published(0, ["p"])
    with StopRequest() as stop:
        if not in_time:
            with pytest.raises(TimeoutError, match=r"step 1 waited 0\.06 s for groups in progress: 0, 1"):
                ours.take(1, stop)
        else:
            assert len(ours.take(1, stop).batch or ()) == 1


def test_what_happens_between_steps_is_in_no_interval_of_metrics(
    loop: LoopThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = Stream(loop, configured(False), FRESH, [])
    monkeypatch.setattr(
        "verl.trainer.ppo.asynchronous.metrics.time", SimpleNamespace(perf_counter=lambda: ours.seconds)
    )
    ours.published(0, ["p"])
    ours.seconds += 300.0  # a run that resumes
    with StopRequest() as stop:
        ours.take(1, stop)
    assert ours.metrics(1, 0.1)["rollouter/idle_ratio"] == 0, (
        "a step of about two seconds, of which episodes take all"
    )

    async def block() -> None:
        ours.seconds += 4.0

    ours.set_validating(True)
    loop.start(block()).result()
    loop.start(asyncio.sleep(2 * TICK_S)).result()
    assert ours.busy.lag_s > 3
    ours.set_validating(False)
    ours.seconds += 1e-3  # an interval is longer than nothing
    assert ours.metrics(1, 0.1)["rollouter/loop_lag_s"] < 0.01


def test_a_surplus_of_dynamic_sampling_goes_on_without_staleness_alone(
    loop: LoopThread, tmp_path: Path
) -> None:
    """A second batch of tasks is in progress, as one of the first batch had no signal: three groups for a
    step of two.
    """
    ours, state = Stream(loop, config := configured(True), FRESH, [], ()), {"async_training": "fully_async"}
    config.algorithm.filter_groups.max_num_gen_batches = 2
    first, rejected, *more = (ours.queue.dispatch(task_index, task_index // 2, 0) for task_index in range(4))
    ours.queue.move("complete", first)
    ours.queue.move("rejected", rejected)
    ours.save(tmp_path)
    assert len(more) == len(ours.queue.of("running")) == 2
    check_checkpoint(tmp_path, state, config.async_training, config.data)
    stale = configured(True, staleness_threshold=1.0)
    with pytest.raises(
        CheckpointError,
        match="and dynamic sampling without staleness; keep the keys of the run that wrote it",
    ):
        check_checkpoint(tmp_path, state, stale.async_training, stale.data)


def test_groups_that_only_drop_allows_are_refused_by_wait(loop: LoopThread, tmp_path: Path) -> None:
    keys = {"staleness_threshold": 2.0, "max_off_policy_strategy": "drop", "max_off_policy_threshold": 0}
    dropping = Stream(loop, configured(False, **keys), Pace(2.0, 1, 0), [])
    dropping.published(0, ["p"])
    with StopRequest() as stop:
        dropping.take(1, stop)
    dropping.published(1, ["p"])
    wait_until(lambda: loop.call(dropping.queue.counts)["complete"] == 6)
    dropping.save(tmp_path)
    state = {"async_training": "fully_async"}
    config = configured(False, **keys)
    check_checkpoint(tmp_path, state, config.async_training, config.data)
    config = configured(False, **keys | {"max_off_policy_strategy": "wait", "max_off_policy_threshold": 2})
    with pytest.raises(CheckpointError, match=r"too old before a step trains on them, as .*=drop allows"):
        check_checkpoint(tmp_path, state, config.async_training, config.data)


def test_groups_that_an_earlier_version_stored_are_refused(loop: LoopThread, tmp_path: Path) -> None:
    ours = stream(loop, [])
    ours.save(tmp_path)
    file = tmp_path / FOLDER / "queue.json"
    state = json.loads(file.read_text())
    state["queue"] |= {"complete": state["queue"].pop("groups"), "running": []}
    file.write_text(json.dumps(state))
    with pytest.raises(CheckpointError, match=r"was written by an earlier version, .*resume_mode=disable$"):
        check_checkpoint(
            tmp_path, {"async_training": "fully_async"}, configured(False).async_training, ours.config.data
        )
