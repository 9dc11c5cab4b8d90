"""What tests wait with, and the time that they count."""

import asyncio
import gc
import signal
import threading
import time
from pathlib import Path

import pytest

from tests.cpu_time import cpu_seconds
from tests.waiting import replace, send_signal, settle, timeless, until, wait_until
from verl.trainer.ppo.interrupt import Interrupted, StopRequest
from verl.utils.loop_thread import LoopThread


def test_a_signal_is_handled_before_work_that_is_nearly_over_ends() -> None:
    """The thread that sends it and ends at once would leave the run a result."""

    async def sends(number: int) -> str:
        send_signal(number)
        await asyncio.sleep(0)
        return "a result"

    loop = LoopThread("test")
    try:
        for number in (signal.SIGTERM, signal.SIGINT):
            with StopRequest() as stop:
                with pytest.raises(Interrupted):
                    stop.run(loop, sends(number))
                assert stop.number == number
        with StopRequest() as stop:
            send_signal(signal.SIGTERM)
            assert stop.number == signal.SIGTERM
    finally:
        loop.close()


@timeless
async def test_limits_of_tasks_pass_at_once_and_in_order() -> None:
    began, order = asyncio.get_running_loop().time(), list[float]()

    async def wait(seconds: float) -> None:
        await asyncio.sleep(seconds)
        order.append(seconds)

    await asyncio.gather(wait(3e3), wait(1e3), wait(2e3))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(500):
            await asyncio.Event().wait()
    assert order == [1e3, 2e3, 3e3] and asyncio.get_running_loop().time() - began == pytest.approx(3500)
    assert await asyncio.to_thread(lambda: "a thread") == "a thread"


async def test_a_condition_is_waited_for_and_one_that_does_not_come_is_an_error() -> None:
    come = threading.Event()
    threading.Timer(0.01, come.set).start()
    assert await until(come.is_set) and wait_until(come.is_set)
    for never in (lambda: wait_until(lambda: [], within_s=0.01), lambda: asyncio.run(until(list, 0.01))):
        with pytest.raises(AssertionError, match=r"\[\] after 0\.01 s"):
            await asyncio.to_thread(never)


async def test_all_that_is_ready_is_done_when_tasks_have_settled() -> None:
    async def chain(length: int) -> int:
        return 1 + await asyncio.create_task(chain(length - 1)) if length else 0

    deep = asyncio.create_task(chain(20))
    await settle()
    assert deep.done() and deep.result() == 20


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    for content in ("one", b"two"):
        replace(tmp_path / "folder" / "file", content, tmp_path)
    assert (tmp_path / "folder" / "file").read_text() == "two"
    assert [path.name for path in tmp_path.rglob("*")] == ["folder", "file"]


def test_collections_and_other_threads_are_not_counted() -> None:
    kept = [[] for _ in range(300_000)]
    before, of_all = cpu_seconds(), time.thread_time()
    gc.collect()
    collected = time.thread_time() - of_all
    assert cpu_seconds() - before < collected / 4 and len(kept) == 300_000
