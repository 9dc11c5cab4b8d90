"""The process that is the program: takes its three pipes, is confined, compiles, runs, and says how it ended."""

from __future__ import annotations

import atexit
import io
import json
import linecache
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from types import CodeType, ModuleType
from typing import Any, NoReturn

NAME = "program.py"
SAY = 3
# What a program may inherit: its three pipes and the one on which it says how it ended.
PIPES = (0, 1, 2, SAY)
READY = b"+"
# Taken now: a program may put something else in its place.
_exit = os._exit
SETUP_FAILED = 125


def start(source: str, test: dict[str, Any], pipes: tuple[int, int, int, int], keep: tuple[int, ...], confine: Callable[[], None]) -> NoReturn:
    """Become the program; called in a process made for it.

    Args:
        source: the program's text.
        test: `mode` (run | call | compile) and, for a call, `function`, `args` and `kwargs`.
        pipes: ends for stdin, stdout, stderr, and for `READY` followed by a JSON object.
        keep: other descriptors that stay open.
        confine: takes away what the program must not have.
    """
    try:
        _take(pipes, keep)
        confine()
        os.write(SAY, READY)
    except BaseException as error:
        os.write(SAY, f"{type(error).__name__}: {error}".encode()[:500])
        _exit(SETUP_FAILED)
    _run(source, test)


def _take(pipes: tuple[int, int, int, int], keep: tuple[int, ...]) -> None:
    os.setsid()
    high = [os.dup(fd) if fd > SAY else _above(fd) for fd in pipes]
    for fd, place in zip(high, PIPES, strict=True):
        os.dup2(fd, place, inheritable=True)
    previous = SAY
    for fd in (*sorted(keep), 1 << 16):
        os.closerange(previous + 1, fd)
        previous = fd
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.stdin = io.TextIOWrapper(open(0, "rb", closefd=False), encoding="utf-8", errors="replace")
    sys.stdout = io.TextIOWrapper(open(1, "wb", closefd=False), encoding="utf-8", errors="backslashreplace")
    sys.stderr = io.TextIOWrapper(open(2, "wb", closefd=False), encoding="utf-8", errors="backslashreplace", line_buffering=True)
    sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr


def _above(fd: int) -> int:
    import fcntl

    return fcntl.fcntl(fd, fcntl.F_DUPFD, SAY + 1)


def _run(source: str, test: dict[str, Any]) -> NoReturn:
    said: dict[str, Any] = {"end": "returned"}
    code = 1
    try:
        module = _new_main(source)
        try:
            compiled = compile(source, NAME, "exec", dont_inherit=True)
        except (SyntaxError, ValueError, OverflowError, RecursionError, MemoryError) as error:
            said = {"end": "compile", "type": type(error).__name__}
            traceback.print_exception(error.with_traceback(None))
        else:
            if test["mode"] != "compile":
                _execute(compiled, module, test, said)
            code = 0
    except SystemExit as error:
        said, code = {"end": "exit"}, _exit_code(error)
    except BaseException as error:
        said = {"end": "raised", "type": type(error).__name__}
        _explain(error)
    _leave(code, said)


def _new_main(source: str) -> ModuleType:
    module = ModuleType("__main__")
    module.__builtins__ = __builtins__  # type: ignore[attr-defined]
    sys.modules["__main__"] = module
    sys.argv = [NAME]
    linecache.cache[NAME] = (len(source), None, source.splitlines(keepends=True), NAME)
    return module


def _execute(compiled: CodeType, module: ModuleType, test: dict[str, Any], said: dict[str, Any]) -> None:
    exec(compiled, module.__dict__)
    if test["mode"] == "call":
        found: Any = module.__dict__
        first, *rest = test["function"].split(".")
        if first not in found:
            raise NameError(f"the program defines no {first!r}")
        found = found[first]
        for name in rest:
            found = getattr(found() if isinstance(found, type) else found, name)
        said["value"] = json.dumps(found(*test["args"], **test["kwargs"]), default=_plain)


def _plain(value: Any) -> Any:
    """JSON of what JSON has no name for, where there is one obvious way."""
    if isinstance(value, (set, frozenset, range)) or hasattr(value, "popleft"):
        return list(value)
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"a {type(value).__name__} has no JSON form")


def _exit_code(error: SystemExit) -> int:
    if error.code is None or isinstance(error.code, int):
        return (error.code or 0) & 0xFF
    print(error.code, file=sys.stderr)
    return 1


def _explain(error: BaseException) -> None:
    """The traceback as Python prints it, without the frames of this file."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    try:
        traceback.print_exception(error.with_traceback(trace))
    except BaseException:  # out of memory or of recursion, or an exception that cannot be printed
        os.write(2, f"{type(error).__name__}\n".encode())


def _leave(code: int, said: dict[str, Any]) -> NoReturn:
    """End as an interpreter does (threads, exit handlers, buffers), then say how it ended."""
    for last in (lambda: threading._shutdown(), atexit._run_exitfuncs, lambda: sys.stdout.flush(), lambda: sys.stderr.flush()):
        try:
            last()
        except BaseException as error:
            code = code or (1 if not isinstance(error, SystemExit) else _exit_code(error))
    try:
        data = json.dumps(said).encode()
        while data:
            data = data[os.write(SAY, data) :]
    finally:
        _exit(code)
