"""Coroutines on the event loop of another thread: their ends, however early they are cancelled."""

import asyncio
import gc
import inspect
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Coroutine, Iterator
from concurrent.futures import CancelledError
from contextlib import suppress
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from tests.house.source import ROOT
from tests.waiting import until, wait_until
from verl.trainer.ppo.interrupt import Interrupted, StopRequest
from verl.utils import loop_thread
from verl.utils.loop_thread import LoopThread, Running


@pytest.fixture
def loop() -> Iterator[LoopThread]:
    thread = LoopThread("test")
    yield thread
    thread.close()


async def forever(begun: threading.Event) -> None:
    begun.set()
    await asyncio.sleep(60)


def test_work_that_is_cancelled_before_it_begins_does_not_begin(loop: LoopThread) -> None:
    held, free, begun = threading.Event(), threading.Event(), threading.Event()

    async def hold() -> None:
        held.set()
        free.wait(30)

    loop.start(hold())
    assert held.wait(30)
    running = loop.start(forever(begun))  # the loop sees the start and the cancellation together
    running.cancel()
    free.set()
    with pytest.raises(CancelledError):
        running.result()
    assert not begun.is_set()


def test_work_that_is_cancelled_later_ends_and_close_ends_what_is_left(loop: LoopThread) -> None:
    first, second = threading.Event(), threading.Event()
    running, left = loop.start(forever(first)), loop.start(forever(second))
    assert first.wait(30) and second.wait(30)
    running.cancel()
    with pytest.raises(CancelledError):
        running.result()
    loop.close()
    with pytest.raises(CancelledError):
        left.result()


def test_a_run_that_was_stopped_begins_no_work_even_if_it_could_end_at_once(
    loop: LoopThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a step whose samples are complete would be trained after the signal."""
    stop, begun, start = StopRequest(), list[str](), loop.start

    async def take(name: str) -> None:
        begun.append(name)

    def started(work: Coroutine[Any, Any, None]) -> Running[None]:
        running = start(work)
        running._future.exception(60)
        return running

    monkeypatch.setattr(loop, "start", started)
    stop.run(loop, take("before"))
    stop.number = signal.SIGTERM
    with pytest.raises(Interrupted):
        stop.run(loop, take("after"))
    assert begun == ["before"]


def test_a_blocked_loop_is_reported_once_with_the_place_while_threads_wait(
    loop: LoopThread, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """By a clock that no busy machine moves on."""
    look, looks, now = LoopThread._look, list[LoopThread](), [0.0]
    monkeypatch.setattr(loop_thread, "BLOCKED_S", 0.5)
    monkeypatch.setattr(loop_thread, "LOOK_S", 0.01)
    monkeypatch.setattr(loop_thread, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(LoopThread, "_look", lambda thread: (looks.append(thread), look(thread))[1])

    def compute() -> None:  # until the loop has been looked at, reported, and looked at again
        while loop._asked_at is None:
            time.sleep(0.001)
        now[0] += 1.0
        while not caplog.records:
            time.sleep(0.001)
        now[0] += 1.0
        several = len(looks) + 5
        while len(looks) < several:
            time.sleep(0.001)

    async def act() -> None:
        compute()

    async def breathe() -> None:
        for _ in range(16):
            several = len(looks) + 2
            now[0] += 0.05
            await until(lambda several=several: len(looks) > several)  # type: ignore[misc]

    def waits_for(work: Coroutine[Any, Any, None], reports: int) -> None:
        other = loop.start(asyncio.sleep(0))
        running = loop.start(work)
        threads = [threading.Thread(target=one.result) for one in (other, running)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        running.result()
        said, caplog.records[:] = [record.getMessage() for record in caplog.records], []
        assert len(said) == reports
        for line in said:
            assert "event loop test has been blocked for" in line and "must not set blocking=False" in line
            assert (
                line.index("test_loop_thread.py") < line.index(" act > ") < line.index(" compute: ")
                and "\n" not in line
            )

    waits_for(breathe(), 0)
    waits_for(act(), 1)
    waits_for(act(), 1)


def test_a_collection_does_not_begin_while_frames_are_read() -> None:
    """Data of a thread in a cycle, freed while the frames are read, stopped the process: a collection is due
    at each allocation in turn.
    """
    read = """
import gc, threading
from verl.utils.loop_thread import frame_of

class Node: pass

for allocations in range(1, 40):
    gc.collect()
    gc.disable()
    node = Node()
    node.itself, node.data = node, threading.local()
    node.data.name = "own"
    del node
    gc.set_threshold(gc.get_count()[0] + allocations)
    gc.enable()
    assert frame_of(threading.main_thread()) is not None and gc.isenabled()
gc.disable()
assert frame_of(threading.main_thread()) is not None and not gc.isenabled()
"""
    subprocess.run([sys.executable, "-c", read], check=True, timeout=200, cwd=ROOT)


def test_a_loop_that_stays_blocked_ends_the_wait_and_names_what_is_on_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(loop_thread, "BLOCKED_S", 0.1)
    monkeypatch.setattr(loop_thread, "LOOK_S", 0.05)
    loop, begun, free = LoopThread("test", 0.4, "some.key"), threading.Event(), threading.Event()

    async def compute() -> None:
        begun.set()
        free.wait(120)

    async def play() -> None:
        waits = asyncio.create_task(asyncio.sleep(60), name="step7/toy:2/0/1")
        blocks = asyncio.create_task(compute(), name="step7/toy:1/0/0")
        await asyncio.gather(waits, blocks)

    since, playing = time.perf_counter(), loop.start(play())
    assert begun.wait(30)
    message = (
        r"test has been blocked for .* some.key=0.4 s. It runs step7/toy:1/0/0; waiting: step7/toy:2/0/1$"
    )
    for work in (playing, loop.start(asyncio.sleep(0))):
        with pytest.raises(TimeoutError, match=message):
            work.result()
    assert 0.4 <= time.perf_counter() - since < 60, "not when the task ends"
    ran_in = list[threading.Thread]()

    def saves() -> str:
        ran_in.append(threading.current_thread())
        return "saved"

    with pytest.raises(TimeoutError, match=message):
        loop.call(lambda: None)
    assert loop.call(saves, blocked_too=True) == "saved"
    free.set()
    loop.call(lambda: None)
    assert ran_in == [threading.current_thread()], "and not once more when the loop goes on"
    loop.close()


def test_a_signal_handler_runs_while_the_main_thread_waits(
    loop: LoopThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop_thread, "LOOK_S", 30.0)
    begun, seen = threading.Event(), list[float]()
    running, since = loop.start(forever(begun)), time.perf_counter()

    def handle(*_: object) -> None:
        seen.append(time.perf_counter() - since)
        running.cancel()

    previous = signal.signal(signal.SIGUSR1, handle)
    try:
        threading.Timer(0.2, signal.pthread_kill, (threading.get_ident(), signal.SIGUSR1)).start()
        with pytest.raises(CancelledError):
            running.result()
    finally:
        signal.signal(signal.SIGUSR1, previous)
    assert seen[0] < loop_thread.LOOK_S and time.perf_counter() - since < loop_thread.LOOK_S


def test_an_error_of_the_work_is_its_own_even_a_timeout(loop: LoopThread) -> None:
    async def late() -> None:
        raise TimeoutError("step 3 waited")

    with pytest.raises(TimeoutError, match="step 3 waited"):
        loop.start(late()).result()
    read = Mock(side_effect=TimeoutError("a file system waited"))
    with pytest.raises(TimeoutError, match="a file system waited"):
        loop.call(read, blocked_too=True)
    assert read.call_count == 1


def test_work_that_ends_when_the_wait_for_it_does_has_its_result(
    loop: LoopThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    work, result, waits = Mock(return_value="saved"), Running.result, list[Running[str]]()

    def gives_up_once(running: Running[str]) -> str:
        waits.append(running)
        found = result(running)
        if len(waits) == 1:
            raise TimeoutError("the event loop has been blocked")
        return found

    monkeypatch.setattr(Running, "result", gives_up_once)
    assert loop.call(work, blocked_too=True) == "saved"
    assert work.call_count == 1 and len(waits) == 2


def collected(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Collect garbage; what failed meanwhile or was never awaited."""
    said: list[str] = []
    with monkeypatch.context() as patch, warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        patch.setattr(sys, "unraisablehook", lambda args: said.append(f"{args.object!r}: {args.exc_value!r}"))
        gc.collect()
    return said + [str(w.message) for w in warned if "was never awaited" in str(w.message)]


def test_a_thread_that_waits_for_a_blocked_loop_is_released_by_close(
    loop: LoopThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As at the end of a run whose environment computes for ever: the process ends only when no
    thread waits. If the loop goes on later, it ends everything on it.
    """
    monkeypatch.setattr(loop_thread, "END_TIMEOUT_S", 0.2)
    collected(monkeypatch)  # of other tests
    held, free, ended = threading.Event(), threading.Event(), list[BaseException]()
    waited, asked, order = threading.Event(), threading.Event(), list[str]()

    async def hold() -> None:
        held.set()
        free.wait(120)

    async def waits() -> None:
        waited.set()
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0)
            order.append("ended")

    def wait() -> None:
        running = loop.start(asyncio.sleep(0))
        asked.set()
        try:
            running.result()
        except CancelledError as error:
            ended.append(error)

    loop.start(waits())
    assert waited.wait(30)
    loop.start(hold())
    assert held.wait(30)
    never = loop.start(forever(threading.Event()))
    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    assert asked.wait(30)
    assert not loop.close() and not loop.close()
    thread.join(30)
    assert len(ended) == 1 and order == []
    free.set()
    loop._thread.join(30)
    assert order == ["ended"] and not loop._thread.is_alive()
    with pytest.raises(CancelledError):
        never.result()
    del never
    assert collected(monkeypatch) == []


def test_submitted_work_has_a_future_and_a_time_limit(loop: LoopThread) -> None:
    async def two() -> int:
        return 2

    assert loop.submit(two()).result(30) == loop.run(two(), 30) == 2
    with pytest.raises(TimeoutError):
        loop.run(late := forever(threading.Event()), 0.05)
    # also when it was cancelled before its first line
    wait_until(lambda: inspect.getcoroutinestate(late) == inspect.CORO_CLOSED)


def test_close_ends_work_before_the_cleanup_and_refuses_more() -> None:
    loop = LoopThread("test")
    order: list[str] = []

    async def hold() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            order.append("work")

    async def cleanup() -> None:
        order.append("cleanup")

    future = loop.submit(hold())
    loop.submit(asyncio.sleep(0)).result(30)
    assert loop.close(cleanup) and order == ["work", "cleanup"] and future.cancelled()
    with pytest.raises(RuntimeError, match="the event loop test is closed"):
        loop.submit(hold())
    assert loop.close()


def test_close_says_whether_a_task_goes_on() -> None:
    loop = LoopThread("test")
    loop._loop.set_exception_handler(lambda *_: None)  # tells of the task that is destroyed

    async def hold() -> None:
        while True:
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(0.01)

    loop.submit(hold())
    loop.submit(asyncio.sleep(0)).result(30)
    assert not loop.close(end_timeout_s=0.05)
