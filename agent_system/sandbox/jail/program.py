"""The process of the program: takes its three pipes, is confined, compiles and runs the program, and reports how it ended."""

from __future__ import annotations

import atexit
import io
import json
import marshal
import os
import sys
from collections.abc import Callable
from types import CodeType, ModuleType
from typing import Any, NoReturn

NAME = "program.py"
STATUS_FD = 3
# Descriptors of a program: its three pipes and the one for the end report.
PIPES = (0, 1, 2, STATUS_FD)
# Bound now, because a program may replace it.
_exit = os._exit
SETUP_FAILED = 125
MAX_DESCRIPTORS = 1 << 16
# In characters, since a line of the program can be as long as the program.
MAX_TRACEBACK_CHARS = 8000
RETURNED = b'{"end": "returned"}'
# Kinds of messages to the job's init before the program runs: an error, or the compiled program, which later tests reuse.
FAILED, COMPILED = b"f", b"c"
MAX_COMPILED_BYTES = 1 << 15


def start(
    source: str,
    compiled: bytes,
    test: dict[str, Any],
    pipes: tuple[int, int, int, int],
    setup: int,
    keep: tuple[int, ...],
    confine: Callable[[], None],
) -> NoReturn:
    """Become the program; called in a process made for it.

    Args:
        source: the program's text.
        compiled: its code, compiled by an earlier test; empty if there is none.
        test: `mode` (call | compile; empty just runs) and, for a call, `function`, `args` and `kwargs`.
        pipes: pipe ends, all above `STATUS_FD`, for stdin, stdout, stderr, and for the end report, a JSON object.
        setup: descriptor for `FAILED` and an error, or `COMPILED`, the length and the code, before the program runs; it never blocks, and
            is closed for the program.
        keep: other descriptors that stay open, ascending.
        confine: confines this process.
    """
    try:
        _take(pipes)
        confine()
        _close_others((setup, *keep))
        _reseed()
    except BaseException as error:
        os.write(setup, FAILED + f"{type(error).__name__}: {error}".encode())
        _exit(SETUP_FAILED)
    _run(source, compiled, test, setup)


def _take(pipes: tuple[int, int, int, int]) -> None:
    os.setsid()
    for fd, place in zip(pipes, PIPES, strict=True):
        os.dup2(fd, place)


def _close_others(keep: tuple[int, ...]) -> None:
    previous = STATUS_FD
    for fd in (*keep, MAX_DESCRIPTORS):
        os.closerange(previous + 1, fd)
        previous = fd


def _reseed() -> None:
    """Reseed random generators, which would otherwise draw the same numbers in every run."""
    for name in ("random", "numpy.random"):
        if (module := sys.modules.get(name)) is not None:
            module.seed()


def open_streams() -> None:
    """Create new `sys.stdin`, `stdout` and `stderr` over descriptors 0 to 2, which are replaced by pipes before a program runs."""
    out, err = (io.BufferedWriter(io.FileIO(fd, "wb", closefd=False)) for fd in (1, 2))
    sys.stdin = io.TextIOWrapper(io.BufferedReader(io.FileIO(0, "rb", closefd=False)), encoding="utf-8", errors="replace")
    sys.stdout = io.TextIOWrapper(out, encoding="utf-8", errors="backslashreplace")
    sys.stderr = io.TextIOWrapper(err, encoding="utf-8", errors="backslashreplace", line_buffering=True)
    for name in ("stdin", "stdout", "stderr"):
        setattr(sys, f"__{name}__", getattr(sys, name))


def _run(source: str, known: bytes, test: dict[str, Any], setup: int) -> NoReturn:
    report: dict[str, Any] = {"end": "returned"}
    code = 1
    try:
        module = _new_main(source)
        try:
            compiled = marshal.loads(known) if known else _compile(source, setup)
        except (SyntaxError, ValueError, OverflowError, RecursionError, MemoryError) as error:
            report = {"end": "compile", "type": type(error).__name__}
            _print_traceback(error, source)
        else:
            os.close(setup)
            if test.get("mode") != "compile":
                _execute(compiled, module, test, report)
            code = 0
    except SystemExit as error:
        report, code = {"end": "exit"}, _exit_code(error)
    except BaseException as error:
        report = {"end": "raised", "type": type(error).__name__}
        _print_traceback(error, source)
    _finish(code, report)


def _compile(source: str, setup: int) -> CodeType:
    """Compile the program and send the code to the init as well: no code of the program has run yet, so it cannot be forged."""
    compiled = compile(source, NAME, "exec", dont_inherit=True)
    try:
        data = marshal.dumps(compiled)
        if len(data) <= MAX_COMPILED_BYTES:
            os.write(setup, COMPILED + len(data).to_bytes(4) + data)
    except (ValueError, MemoryError, OSError):  # nested too deep, too large for its limits, or more than the pipe takes
        pass
    return compiled


def compiled_code(message: bytes) -> bytes:
    """Return the compiled program in a setup message; empty if there is none, or it is not complete."""
    complete = message[:1] == COMPILED and int.from_bytes(message[1:5]) == len(message) - 5
    return message[5:] if complete else b""


def _new_main(source: str) -> ModuleType:
    module = ModuleType("__main__")
    module.__builtins__ = __builtins__  # type: ignore[attr-defined]
    sys.modules["__main__"] = module
    sys.argv = [NAME]
    return module


def _execute(compiled: CodeType, module: ModuleType, test: dict[str, Any], report: dict[str, Any]) -> None:
    exec(compiled, module.__dict__)
    if test:
        found: Any = module.__dict__
        first, *rest = test["function"].split(".")
        if first not in found:
            raise NameError(f"the program defines no {first!r}")
        found = found[first]
        for name in rest:
            found = getattr(found() if isinstance(found, type) else found, name)
        report["value"] = json.dumps(found(*test["args"], **test["kwargs"]), default=_plain)


def _plain(value: Any) -> Any:
    """Convert a value without a JSON type to one with it, for types with one obvious conversion."""
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


def _print_traceback(error: BaseException, source: str) -> None:
    """Print the traceback as Python does, without the frames of this file."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    try:
        import linecache  # these two are loaded only for programs that fail
        import traceback

        linecache.cache[NAME] = (len(source), None, source.splitlines(keepends=True), NAME)
        text = "".join(traceback.format_exception(error.with_traceback(trace)))
        if len(text) > MAX_TRACEBACK_CHARS:
            text = f"{text[: MAX_TRACEBACK_CHARS // 2]}\n...\n{text[-MAX_TRACEBACK_CHARS // 2 :]}"
        sys.stderr.write(text)
    except BaseException:  # out of memory, recursion limit, or an exception that cannot be printed
        os.write(2, f"{type(error).__name__}\n".encode())


def _join_threads() -> None:
    if (threading := sys.modules.get("threading")) is not None:
        threading._shutdown()


def _finish(code: int, report: dict[str, Any]) -> NoReturn:
    """Exit as an interpreter does (threads, exit handlers, buffers), after writing the end report."""
    for last in (_join_threads, atexit._run_exitfuncs, lambda: sys.stdout.flush(), lambda: sys.stderr.flush()):
        try:
            last()
        except BaseException as error:
            code = code or (1 if not isinstance(error, SystemExit) else _exit_code(error))
    try:
        data = RETURNED if report == {"end": "returned"} else json.dumps(report).encode()
        while data:
            data = data[os.write(STATUS_FD, data) :]
    finally:
        _exit(code)
