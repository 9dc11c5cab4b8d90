"""What Python allows in a process's main thread only, for code of users that runs in other threads:
alarms and event loops.

Reward functions, environments, tools and teams run in pool threads or on an event loop in a thread.
`signal.signal` raises there, and libraries that limit their time by `SIGALRM` (math-verify does by
default) then fail; a caller that handles every error sees a wrong score only. After
`support_main_thread_calls` the functions of `signal` that belong to an alarm work in every thread,
each thread and each asyncio task with an alarm of its own, and `asyncio.get_event_loop` gives each
pool thread a loop, as it gives the main thread one.
"""

from __future__ import annotations

import asyncio
import ctypes
import math
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from types import FrameType
from typing import Any
from weakref import WeakKeyDictionary

# An alarm of an asyncio task waits in steps of so many seconds until the task runs.
RETRY_S = 0.01
_Handler = Callable[[int, FrameType | None], Any] | int | None
_Owner = threading.Thread | asyncio.Task[Any]


@dataclass
class _Alarm:
    """The handler of SIGALRM and the timer of one thread, or of one asyncio task."""

    thread: threading.Thread
    handler: _Handler = signal.SIG_DFL
    timer: threading.Timer | None = None
    due: float = 0.0
    interval: float = 0.0


@dataclass
class _ThreadAlarms:
    """The alarms of all threads but the main one, and the functions of `signal` that set them."""

    alarms: WeakKeyDictionary[_Owner, _Alarm] = field(default_factory=WeakKeyDictionary)
    lock: threading.RLock = field(default_factory=threading.RLock)
    plain_signal: Callable[[int, Any], Any] = signal.signal
    plain_getsignal: Callable[[int], Any] = signal.getsignal
    plain_setitimer: Callable[..., tuple[float, float]] = signal.setitimer
    plain_getitimer: Callable[[int], tuple[float, float]] = signal.getitimer
    plain_alarm: Callable[[int], int] = signal.alarm

    def install(self) -> None:
        """Replace the functions in the module `signal`; calls of the main thread, and of other
        signals, reach Python's own.
        """
        signal.signal = self.signal  # type: ignore[assignment]
        signal.getsignal = self.getsignal  # type: ignore[assignment]
        signal.setitimer = self.setitimer
        signal.getitimer = self.getitimer
        signal.alarm = self.alarm

    def signal(self, signalnum: int, handler: Any) -> Any:
        """As `signal.signal`."""
        if signalnum != signal.SIGALRM or in_main_thread():
            return self.plain_signal(signalnum, handler)
        if not callable(handler) and handler not in (signal.SIG_DFL, signal.SIG_IGN):
            raise TypeError("signal handler must be signal.SIG_IGN, signal.SIG_DFL, or a callable object")
        with self.lock:
            alarm = self._own_alarm()
            before = alarm.handler
            alarm.handler = handler
        return before

    def getsignal(self, signalnum: int) -> Any:
        """As `signal.getsignal`."""
        if signalnum != signal.SIGALRM or in_main_thread():
            return self.plain_getsignal(signalnum)
        return self._own_alarm().handler

    def setitimer(self, which: int, seconds: float, interval: float = 0.0) -> tuple[float, float]:
        """As `signal.setitimer`."""
        if which != signal.ITIMER_REAL or in_main_thread():
            return self.plain_setitimer(which, seconds, interval)
        if seconds < 0 or interval < 0:
            # As setitimer(2) does.
            raise signal.ItimerError(22, "Invalid argument")
        with self.lock:
            before = self.getitimer(which)
            self._start(self._own_alarm(), _owner(), seconds, interval)
        return before

    def getitimer(self, which: int) -> tuple[float, float]:
        """As `signal.getitimer`."""
        if which != signal.ITIMER_REAL or in_main_thread():
            return self.plain_getitimer(which)
        alarm = self._own_alarm()
        return (0.0, 0.0) if alarm.timer is None else (max(0.0, alarm.due - time.monotonic()), alarm.interval)

    def alarm(self, seconds: int) -> int:
        """As `signal.alarm`."""
        if in_main_thread():
            return self.plain_alarm(seconds)
        return math.ceil(self.setitimer(signal.ITIMER_REAL, seconds)[0])

    def forget(self) -> None:
        """Stop the alarm that a finished call of this thread has left, and forget its handler."""
        with self.lock:
            alarm = self.alarms.pop(threading.current_thread(), None)
            if alarm is not None and alarm.timer is not None:
                alarm.timer.cancel()
                alarm.timer = None

    def _own_alarm(self) -> _Alarm:
        with self.lock:
            return self.alarms.setdefault(_owner(), _Alarm(threading.current_thread()))

    def _start(self, alarm: _Alarm, owner: _Owner, seconds: float, interval: float) -> None:
        if alarm.timer is not None:
            alarm.timer.cancel()
            alarm.timer = None
        if seconds:
            alarm.due = time.monotonic() + seconds
            alarm.interval = interval
            alarm.timer = threading.Timer(seconds, lambda: self._ring(alarm, owner, timer))
            timer = alarm.timer
            timer.daemon = True
            timer.start()

    def _ring(self, alarm: _Alarm, owner: _Owner, timer: threading.Timer | None) -> None:
        """Call the handler in the timer's thread, and raise its exception in the thread that set
        the alarm.
        """
        while isinstance(owner, asyncio.Task) and not _runs(owner):
            if owner.done() or alarm.timer is not timer:
                return
            time.sleep(RETRY_S)
        handler = alarm.handler
        if alarm.timer is not timer or not callable(handler):
            return
        error: BaseException | None = None
        try:
            handler(signal.SIGALRM, sys._current_frames().get(alarm.thread.ident or 0))
        except BaseException as raised:
            # whatever it is, it belongs to the thread that set the alarm
            error = raised
        with self.lock:
            if alarm.timer is not timer:
                # cleared meanwhile: the call that was limited has ended
                return
            self._start(alarm, owner, alarm.interval, alarm.interval)
            if error is not None and (isinstance(owner, threading.Thread) or _runs(owner)):
                _raise_in(alarm.thread, error)


_alarms = _ThreadAlarms()
_supported = threading.Event()


class _LoopPerThread(asyncio.DefaultEventLoopPolicy):
    """Python's policy, which gives a loop to every thread that asks for one and has none."""

    def get_event_loop(self) -> asyncio.AbstractEventLoop:
        """Return the loop of this thread."""
        if self._local._loop is None and not in_main_thread():  # type: ignore[attr-defined]
            self.set_event_loop(self.new_event_loop())
        return super().get_event_loop()


def support_main_thread_calls() -> None:
    """Let alarms, and `asyncio.get_event_loop` under Python's own policy, work in every thread of
    this process from now on.
    """
    if not _supported.is_set():
        _supported.set()
        _alarms.install()
        if type(asyncio.get_event_loop_policy()) is asyncio.DefaultEventLoopPolicy:
            asyncio.set_event_loop_policy(_LoopPerThread())


def forget_alarm() -> None:
    """Stop the alarm that a finished call of this thread has left."""
    _alarms.forget()


def in_main_thread() -> bool:
    """Return whether this is the process's main thread."""
    return threading.current_thread() is threading.main_thread()


def _owner() -> _Owner:
    """Return the asyncio task that runs in this thread, or the thread."""
    try:
        return asyncio.current_task() or threading.current_thread()
    except RuntimeError:  # no loop runs in this thread
        return threading.current_thread()


def _runs(task: asyncio.Task[Any]) -> bool:
    return asyncio.current_task(task.get_loop()) is task


def _raise_in(thread: threading.Thread, error: BaseException) -> None:
    """Raise `error` at the next bytecode of a thread; Python takes a class there and makes the
    exception without arguments.
    """
    cls = type(error)

    def initialise(self: BaseException) -> None:
        self.args = error.args
        self.__dict__.update(error.__dict__)

    like = type(
        cls.__name__,
        (cls,),
        {"__init__": initialise, "__module__": cls.__module__, "__qualname__": cls.__qualname__},
    )
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(like))
