"""A task whose groups always fail is set aside, once and for all runs that resume this one."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.trainer.ppo.asynchronous.test_rewind import FRESH, Stream, configured, loop
from verl.trainer.ppo.interrupt import StopRequest
from verl.utils.loop_thread import LoopThread

__all__ = ["loop"]


def tasks_of(stream: Stream, first: int, last: int) -> list[list[int]]:
    """Train steps; the tasks of each."""
    with StopRequest() as stop:
        for step in range(first, last + 1):
            stream.published(step - 1, ["p"])
            stream.take(step, stop)
    return [[int(uid.split("/")[1]) for uid in uids] for uids in stream.taken_uids]


def test_its_failures_are_counted_once_through_a_rescue_and_then_it_is_drawn_no_more(
    loop: LoopThread, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Four tasks in their order, two a step: the second one fails in steps 1 and 3, and other tasks take its
    place.
    """
    saved: list[Any] = []
    first, second, third = (
        Stream(loop, configured(False, max_task_failures=2), FRESH, saved) for _ in range(3)
    )
    first.broken = second.broken = third.broken = {1}
    assert tasks_of(first, 1, 3) == [[0, 2], [3, 0], [2, 3]] and first.queue.set_aside == {1}
    (before := tmp_path / "before").mkdir()
    first.rewind(2)
    first.save(before)
    second.load(before)
    assert second.queue.failures == {1: 2} and second.queue.counts()["failed"] == 2
    assert tasks_of(second, 3, 6) == [[2, 3], [0, 2], [3, 0], [2, 3]]
    (after := tmp_path / "after").mkdir()
    second.save(after)
    third.load(after)
    assert tasks_of(third, 7, 8) == [[0, 2], [3, 0]] and third.queue.counts()["failed"] == 2
    said = [record.getMessage() for record in caplog.records if "set aside" in record.getMessage()]
    assert said == ["task toy:1 is set aside: its last 2 groups failed, the last one with KeyError: 'world'"]


@pytest.mark.parametrize(("limit", "warnings"), [(2, 1), (0, 0)])
def test_it_is_named_once_though_groups_that_began_before_fail_later(
    loop: LoopThread, caplog: pytest.LogCaptureFixture, limit: int, warnings: int
) -> None:
    ours = Stream(loop, configured(False, max_task_failures=limit), FRESH, [])
    last: Any = SimpleNamespace(task_id="toy:1", failure="KeyError")
    for group in [ours.queue.dispatch(1, 0, number) for number in range(4)]:
        ours._end(group, "failed", [last])
    assert caplog.text.count("toy:1 is set aside") == warnings == len(ours.queue.set_aside)


def test_it_takes_no_place_in_the_batches_of_dynamic_sampling(loop: LoopThread) -> None:
    """One batch of two tasks may be drawn for a step."""
    ours = Stream(loop, configured(True, max_task_failures=3), FRESH, [])
    ours.queue.failures = {1: 3}
    assert tasks_of(ours, 1, 2) == [[0, 2], [3, 0]]


def test_a_run_ends_when_all_tasks_are_set_aside(loop: LoopThread) -> None:
    ours = Stream(loop, configured(False, max_task_failures=1), FRESH, [])
    ours.broken = {0, 1, 2, 3}
    assert tasks_of(ours, 1, 2) == [[], []]
    ours.published(2, ["p"])
    with StopRequest() as stop:
        samples = ours.take(3, stop)
    expected = "no task can be drawn: all tasks are set aside, see async_training.max_task_failures"
    assert samples.batch is None and samples.no_batch_reason == expected
