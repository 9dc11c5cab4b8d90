"""Coroutines on the event loop of another thread: their ends, however early they are cancelled."""

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError

import pytest

from verl.utils.loop_thread import LoopThread


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
        free.wait(5)

    loop.start(hold())
    assert held.wait(5)
    running = loop.start(forever(begun))  # the loop sees the start and the cancellation together
    running.cancel()
    free.set()
    with pytest.raises(CancelledError):
        running.result()
    assert not begun.is_set()


def test_work_that_is_cancelled_later_ends_and_close_ends_what_is_left(loop: LoopThread) -> None:
    first, second = threading.Event(), threading.Event()
    running, left = loop.start(forever(first)), loop.start(forever(second))
    assert first.wait(5) and second.wait(5)
    running.cancel()
    with pytest.raises(CancelledError):
        running.result()
    loop.close()
    with pytest.raises(CancelledError):
        left.result()
