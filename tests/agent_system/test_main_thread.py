"""What Python allows in the main thread only, in functions of reward, environments, tools and teams: alarms
and event loops.
"""

from __future__ import annotations

import asyncio
import logging
import pickle
import signal
import time
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

from agent_system import BaseEnv, EnvRegistry, Observation, Outcome, Task
from agent_system.env_caller import EnvCaller
from agent_system.env_workers import EnvSource, EnvWorkers, ProcessWorker
from agent_system.main_thread import support_main_thread_calls
from agent_system.thread_watch import ThreadWatch
from agent_system.threads import DaemonExecutor, run_plain, watched
from agent_system.tools.tool import make_tool
from tests.house.source import ROOT
from tests.waiting import wait_until
from verl.utils.loop_thread import LoopThread


class LateError(Exception):
    def __init__(self, seconds: float, unit: str) -> None:
        super().__init__(seconds, unit)
        self.unit = unit


def limited_by_signal(work: Callable[[], Any], seconds: float = 5.0) -> Any:
    """Run work within a time limit, as libraries do."""

    def ring(signum: int, frame: Any) -> None:
        assert signum == signal.SIGALRM and frame.f_lineno > 0
        raise LateError(seconds, "s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        return work()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def computes_for_ever() -> None:
    until = time.monotonic() + 20
    while time.monotonic() < until:
        pass


def verified() -> float:
    """Score a right answer by math-verify at its defaults, as reward functions do."""
    from math_verify import parse, verify

    try:
        return float(verify(parse("$7$"), parse("It is $7$.")))
    except Exception:
        return 0.0


def limited() -> float:
    """Score by math-verify, after a computation without an end that an alarm ends."""
    try:
        limited_by_signal(computes_for_ever, 0.05)
    except LateError:
        return verified()
    return 0.0


def by_own_loop() -> float:
    async def score() -> float:
        await asyncio.sleep(0)
        return 1.0

    try:
        return asyncio.get_event_loop().run_until_complete(score())
    except RuntimeError:
        return 0.0


def in_thread(function: Callable[..., Any], *args: Any) -> Any:
    with DaemonExecutor(1) as threads:
        return threads.submit(run_plain, function, *args).result(30)


@pytest.mark.parametrize("function", [verified, by_own_loop])
def test_what_scores_in_the_main_thread_scores_in_a_thread_of_the_run(function: Callable[[], float]) -> None:
    assert in_thread(function) == 1.0


def test_an_alarm_ends_a_call_that_computes_and_no_other() -> None:
    def late() -> str:
        try:
            limited_by_signal(computes_for_ever, 0.1)
        except LateError as error:
            return f"{error.args} {error.unit}"
        return "no limit"

    with DaemonExecutor(4) as threads:
        other = threads.submit(lambda: limited_by_signal(lambda: time.sleep(0.3) or "in time"))
        assert threads.submit(late).result(30) == "(0.1, 's') s"
        assert other.result(30) == "in time"
        with pytest.raises(LateError):
            threads.submit(lambda: limited_by_signal(computes_for_ever, 0.1)).result(30)


def test_an_alarm_that_a_call_leaves_does_not_reach_the_next_one() -> None:
    def leaves() -> int:
        signal.signal(signal.SIGALRM, lambda *_: 1 / 0)
        return signal.alarm(1)

    with DaemonExecutor(1) as threads:
        assert threads.submit(leaves).result(30) == 0
        assert (
            threads.submit(lambda: (time.sleep(1.2), signal.getsignal(signal.SIGALRM))[1]).result(30)
            == signal.SIG_DFL
        )


def test_an_alarm_may_repeat_and_reports_what_is_left() -> None:
    def counted() -> tuple[int, bool, int]:
        rung: list[float] = []
        signal.signal(signal.SIGALRM, lambda *_: rung.append(0.0))
        signal.setitimer(signal.ITIMER_REAL, 0.02, 0.02)
        wait_until(lambda: len(rung) >= 3)
        left, interval = signal.getitimer(signal.ITIMER_REAL)
        signal.alarm(5)
        return len(rung), left <= 0.02 == interval, signal.alarm(0)

    rung, reported, left = in_thread(counted)
    assert rung >= 3 and reported and left == 5


def test_an_alarm_of_a_coroutine_ends_that_coroutine_and_not_its_loop() -> None:
    async def late() -> str:
        with pytest.raises(LateError):
            limited_by_signal(computes_for_ever, 0.1)
        signal.signal(signal.SIGALRM, lambda *_: 1 / 0)
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        try:
            await asyncio.sleep(0.2)  # the alarm rings while another task, or none, runs
            computes_for_ever()
        except ZeroDivisionError:
            return "rung"
        return "no limit"

    async def other() -> int:
        counted = 0
        for _ in range(30):
            await asyncio.sleep(0.01)
            counted += 1
        return counted

    support_main_thread_calls()
    loop = LoopThread("test")
    try:
        both = loop.start(late()), loop.start(other())
        assert [running.result() for running in both] == ["rung", 30]
    finally:
        loop.close()


def test_alarms_of_the_main_thread_and_other_signals_stay_pythons() -> None:
    with pytest.raises(LateError):
        limited_by_signal(computes_for_ever, 0.05)
    with pytest.raises(ValueError, match="main thread"):
        in_thread(signal.signal, signal.SIGUSR1, signal.SIG_DFL)
    with pytest.raises(TypeError, match="callable"):
        in_thread(signal.signal, signal.SIGALRM, "text")


def test_a_function_that_at_first_needs_no_main_thread_is_reported_too(
    caplog: pytest.LogCaptureFixture,
) -> None:
    calls = 0

    def scores_late() -> float:
        nonlocal calls
        calls += 1
        try:
            if calls > 8:
                raise RuntimeError("main thread is not in main loop")
        except RuntimeError:
            pass
        return 0.0

    with caplog.at_level(logging.WARNING):
        for _ in range(10):
            in_thread(scores_late)
    assert sum("scores_late" in record.getMessage() for record in caplog.records) == 1


@pytest.mark.parametrize("handled", [True, False])
def test_other_errors_of_the_thread_that_a_function_handles_are_reported_once(
    handled: bool, caplog: pytest.LogCaptureFixture
) -> None:
    def opens_a_window() -> float:
        try:
            raise RuntimeError("main thread is not in main loop")
        except RuntimeError:
            if not handled:
                raise
            return 0.0

    with caplog.at_level(logging.WARNING):
        for _ in range(6):
            if handled:
                assert in_thread(opens_a_window) == 0.0
            else:
                with pytest.raises(RuntimeError, match="not in main loop"):
                    in_thread(opens_a_window)
    warned = [record.getMessage() for record in caplog.records if "opens_a_window" in record.getMessage()]
    assert len(warned) == handled
    assert all("RuntimeError: main thread is not in main loop" in message for message in warned)


async def scores_nothing() -> float:
    """Handle an error of the thread after a wait."""
    await asyncio.sleep(0.01)
    try:
        raise RuntimeError("signal only works in main thread of the main interpreter")
    except RuntimeError:
        return 0.0


def plain_that_returns_a_coroutine() -> Any:
    return scores_nothing()


async def other_task() -> int:
    return sum([await asyncio.sleep(0.001, 1) for _ in range(20)])


async def cancelled(begun: asyncio.Event) -> str:
    begun.set()
    try:
        await asyncio.sleep(30)
    except asyncio.CancelledError:
        return "ended by itself"
    return "not cancelled"


@pytest.mark.parametrize("function", [scores_nothing, plain_that_returns_a_coroutine])
def test_an_error_that_an_async_function_handles_is_reported(
    function: Callable[[], Any], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent_system.threads._watch", cache(ThreadWatch))

    async def score() -> tuple[float, int]:
        found = function() if function is scores_nothing else in_thread(function)
        others = asyncio.ensure_future(other_task())
        return await watched(found), await others

    loop = LoopThread("test")
    try:
        with caplog.at_level(logging.WARNING):
            assert [loop.start(score()).result() for _ in range(3)] == [(0.0, 20)] * 3
    finally:
        loop.close()
    warned = [record.getMessage() for record in caplog.records if "scores_nothing" in record.getMessage()]
    assert len(warned) == 1 and "only works in main thread" in warned[0]


def test_a_watched_coroutine_waits_fails_and_is_cancelled_as_another() -> None:
    async def fails() -> None:
        await asyncio.sleep(0)
        raise LookupError("of the function")

    async def tried() -> str:
        with pytest.raises(LookupError, match="of the function"):
            await watched(fails())
        assert await watched(asyncio.ensure_future(other_task())) == 20
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await watched(asyncio.sleep(30))
        begun = asyncio.Event()
        task = asyncio.ensure_future(watched(cancelled(begun)))
        await begun.wait()
        task.cancel()
        return str(await task)

    loop = LoopThread("test")
    try:
        assert loop.start(tried()).result() == "ended by itself"
    finally:
        loop.close()


class Verifies(BaseEnv):
    def reset(self, task: Task) -> Observation:
        return Observation(task.prompt)

    def step(self, action: str) -> Outcome:
        return Outcome(team=limited(), done=True)


class VerifiesAsync(Verifies):
    async def step(self, action: str) -> Outcome:  # type: ignore[override]
        return Outcome(team=limited(), done=True)


EnvRegistry.register("verifies")(Verifies)
EnvRegistry.register("verifies_async")(VerifiesAsync)


async def team_reward(env: Any) -> float:
    await env.observation("reset", Task("t", "7?", "demo", "7"))
    return float((await env.outcome("step", "7")).team)


@pytest.mark.parametrize("name", ["verifies", "verifies_async"])
def test_an_environment_has_the_same_reward_with_and_without_workers(name: str) -> None:
    loop = LoopThread("test")
    source = EnvSource(name=name, plugins=(__name__,), threads=2, workers=1)
    path = {"PYTHONPATH": str(ROOT)}
    workers = EnvWorkers(EnvRegistry.get(name), 1, lambda: ProcessWorker(pickle.dumps(source), path))
    try:
        with DaemonExecutor(2) as threads:
            here = EnvCaller(EnvRegistry.get(name)(None), threads)
            assert loop.start(team_reward(here)).result() == 1.0
        assert loop.start(team_reward(workers.env(0))).result() == 1.0
    finally:
        workers.close()
        loop.close()


@pytest.mark.parametrize("is_async", [False, True])
def test_a_tool_may_limit_its_time(is_async: bool) -> None:
    def price(item: str) -> float:
        """Return a price.

        Args:
            item: what is for sale.
        """
        return limited()

    async def price_async(item: str) -> float:
        """Return a price.

        Args:
            item: what is for sale.
        """
        return limited()

    loop = LoopThread("test")
    try:
        tool = make_tool(price_async if is_async else price)
        assert loop.start(tool.call({"item": "plum"}, 10.0)).result() == "1.0"
    finally:
        loop.close()
