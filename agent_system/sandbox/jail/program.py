"""The process that is the program: takes its three pipes, is confined, compiles, runs, and says how it ended."""

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
SAY = 3
# What a program may inherit: its three pipes and the one on which it says how it ended.
PIPES = (0, 1, 2, SAY)
# Taken now: a program may put something else in its place.
_exit = os._exit
SETUP_FAILED = 125
MOST_DESCRIPTORS = 1 << 16
# Characters: a line of the program can be as long as the program.
MOST_TRACEBACK = 8000
RETURNED = b'{"end": "returned"}'
# What is told to the job's init before the program runs: an error, or the compiled program, which no later test has to compile again.
FAILED, COMPILED = b"f", b"c"
MOST_COMPILED = 1 << 15


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
        compiled: what an earlier test told of it; empty for the first one and where none told anything.
        test: `mode` (call | compile; empty just runs) and, for a call, `function`, `args` and `kwargs`.
        pipes: ends, all above `SAY`, for stdin, stdout, stderr, and for the JSON object that says how it ended.
        setup: where `FAILED` and an error go, or `COMPILED`, the length and the code, before the program runs; it never blocks, and the
            program does not have it.
        keep: other descriptors that stay open, ascending.
        confine: takes away what the program must not have.
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
    previous = SAY
    for fd in (*keep, MOST_DESCRIPTORS):
        os.closerange(previous + 1, fd)
        previous = fd


def _reseed() -> None:
    """Generators that were seeded when they were loaded would draw the same in every run."""
    for name in ("random", "numpy.random"):
        if (module := sys.modules.get(name)) is not None:
            module.seed()


def open_streams() -> None:
    """Make `sys.stdin`, `stdout` and `stderr` anew over their descriptors, whatever these will be when a program begins."""
    out, err = (io.BufferedWriter(io.FileIO(fd, "wb", closefd=False)) for fd in (1, 2))
    sys.stdin = io.TextIOWrapper(io.BufferedReader(io.FileIO(0, "rb", closefd=False)), encoding="utf-8", errors="replace")
    sys.stdout = io.TextIOWrapper(out, encoding="utf-8", errors="backslashreplace")
    sys.stderr = io.TextIOWrapper(err, encoding="utf-8", errors="backslashreplace", line_buffering=True)
    for name in ("stdin", "stdout", "stderr"):
        setattr(sys, f"__{name}__", getattr(sys, name))


def _run(source: str, known: bytes, test: dict[str, Any], setup: int) -> NoReturn:
    said: dict[str, Any] = {"end": "returned"}
    code = 1
    try:
        module = _new_main(source)
        try:
            compiled = marshal.loads(known) if known else _compile(source, setup)
        except (SyntaxError, ValueError, OverflowError, RecursionError, MemoryError) as error:
            said = {"end": "compile", "type": type(error).__name__}
            _explain(error, source)
        else:
            os.close(setup)
            if test.get("mode") != "compile":
                _execute(compiled, module, test, said)
            code = 0
    except SystemExit as error:
        said, code = {"end": "exit"}, _exit_code(error)
    except BaseException as error:
        said = {"end": "raised", "type": type(error).__name__}
        _explain(error, source)
    _leave(code, said)


def _compile(source: str, setup: int) -> CodeType:
    """The code of the program, told to the init as well: nothing of the program has run yet, so it is what the text says."""
    compiled = compile(source, NAME, "exec", dont_inherit=True)
    try:
        told = marshal.dumps(compiled)
        if len(told) <= MOST_COMPILED:
            os.write(setup, COMPILED + len(told).to_bytes(4) + told)
    except (ValueError, MemoryError, OSError):  # nested too deep, too large for its limits, or more than the pipe takes
        pass
    return compiled


def known_code(told: bytes) -> bytes:
    """The compiled program of what a test told; nothing where it told none, or not all of it."""
    whole = told[:1] == COMPILED and int.from_bytes(told[1:5]) == len(told) - 5
    return told[5:] if whole else b""


def _new_main(source: str) -> ModuleType:
    module = ModuleType("__main__")
    module.__builtins__ = __builtins__  # type: ignore[attr-defined]
    sys.modules["__main__"] = module
    sys.argv = [NAME]
    return module


def _execute(compiled: CodeType, module: ModuleType, test: dict[str, Any], said: dict[str, Any]) -> None:
    exec(compiled, module.__dict__)
    if test:
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


def _explain(error: BaseException, source: str) -> None:
    """The traceback as Python prints it, without the frames of this file."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    try:
        import linecache  # these two are loaded for programs that fail only
        import traceback

        linecache.cache[NAME] = (len(source), None, source.splitlines(keepends=True), NAME)
        text = "".join(traceback.format_exception(error.with_traceback(trace)))
        if len(text) > MOST_TRACEBACK:
            text = f"{text[: MOST_TRACEBACK // 2]}\n...\n{text[-MOST_TRACEBACK // 2 :]}"
        sys.stderr.write(text)
    except BaseException:  # out of memory or of recursion, or an exception that cannot be printed
        os.write(2, f"{type(error).__name__}\n".encode())


def _join_threads() -> None:
    if (threading := sys.modules.get("threading")) is not None:
        threading._shutdown()


def _leave(code: int, said: dict[str, Any]) -> NoReturn:
    """End as an interpreter does (threads, exit handlers, buffers), then say how it ended."""
    for last in (_join_threads, atexit._run_exitfuncs, lambda: sys.stdout.flush(), lambda: sys.stderr.flush()):
        try:
            last()
        except BaseException as error:
            code = code or (1 if not isinstance(error, SystemExit) else _exit_code(error))
    try:
        data = RETURNED if said == {"end": "returned"} else json.dumps(said).encode()
        while data:
            data = data[os.write(SAY, data) :]
    finally:
        _exit(code)
