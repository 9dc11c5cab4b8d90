"""The process of the program: takes its streams, is confined, compiles and runs the program, and
reports how it ended.
"""

from __future__ import annotations

import atexit
import json
import marshal
import os
import sys
from collections.abc import Callable
from types import CodeType, ModuleType
from typing import Any, NoReturn

from .callee import allow_deep_calls, become_module, find_function, give_usual_names, plain

NAME = "program.py"
STATUS_FD = 3
# Descriptors of a program: its three streams and the one for the end report.
PIPES = (0, 1, 2, STATUS_FD)
# Bound now, because a program may replace it.
_exit = os._exit
SETUP_FAILED = 125
MAX_DESCRIPTORS = 1 << 16
# In characters, since a line of the program can be as long as the program.
MAX_TRACEBACK_CHARS = 8000
RETURNED = b'{"end": "returned"}'
# Kinds of messages to the job's init before the program runs: an error, or the compiled program,
# which later tests reuse.
FAILED = b"f"
COMPILED = b"c"
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
        test: `mode` (call | compile; empty just runs), for a call `function`, `args` and `kwargs`,
            and `usual_names`.
        pipes: descriptors, all above `STATUS_FD`, of stdin, stdout, stderr, and for the end report,
            a JSON object.
        setup: descriptor for `FAILED` and an error, or `COMPILED`, the length and the code, before
            the program runs; it never blocks, and is closed for the program.
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


def _run(source: str, bytecode: bytes, test: dict[str, Any], setup: int) -> NoReturn:
    report: dict[str, Any] = {"end": "returned"}
    code = 1
    module = _new_main()
    try:
        try:
            compiled = marshal.loads(bytecode) if bytecode else _compile(source, setup)
        except (SyntaxError, ValueError, OverflowError, RecursionError, MemoryError) as error:
            report = {"end": "compile", "type": type(error).__name__}
            _print_traceback(error, source)
        else:
            _show_source(source, module)
            # Before any code of the program runs, which could forge a message.
            os.close(setup)
            if test.get("mode") != "compile":
                _execute(compiled, module, test, report)
            code = 0
    except SystemExit as error:
        report = {"end": "exit"}
        code = _exit_code(error)
    except BaseException as error:
        report = {"end": "raised", "type": type(error).__name__}
        _print_traceback(error, source)
    _finish(code, report, module)


def _compile(source: str, setup: int) -> CodeType:
    """Compile the program and send the code to the init as well: no code of the program has run
    yet, so it cannot be forged.
    """
    compiled = compile(source, NAME, "exec", dont_inherit=True)
    try:
        data = marshal.dumps(compiled)
        if len(data) <= MAX_COMPILED_BYTES:
            os.write(setup, COMPILED + len(data).to_bytes(4) + data)
    except (
        ValueError,
        MemoryError,
        OSError,
    ):
        # nested too deep, too large for its limits, or more than the pipe takes
        pass
    return compiled


def compiled_code(message: bytes) -> bytes:
    """Return the compiled program in a setup message; empty if there is none, or it is not
    complete.
    """
    complete = message[:1] == COMPILED and int.from_bytes(message[1:5]) == len(message) - 5
    return message[5:] if complete else b""


def _new_main() -> ModuleType:
    module = ModuleType("__main__")
    module.__builtins__ = sys.modules["builtins"]  # type: ignore[attr-defined]
    names = module.__dict__
    names["__annotations__"] = {}
    names["__file__"] = f"{os.getcwd()}/{NAME}"
    names["__cached__"] = None
    sys.modules["__main__"] = module
    sys.argv = [NAME]
    return module


def _show_source(source: str, module: ModuleType) -> None:
    """Let `inspect` and `traceback` find the program's lines, of which there is no file."""
    if (linecache := sys.modules.get("linecache")) is not None:
        for name in (NAME, module.__dict__["__file__"]):
            linecache.cache[name] = (lambda: source,)


def _execute(compiled: CodeType, module: ModuleType, test: dict[str, Any], report: dict[str, Any]) -> None:
    if test:
        allow_deep_calls()
    if test.get("usual_names"):
        give_usual_names(compiled)
    if test.get("mode") == "call":
        become_module(module.__dict__)
    exec(compiled, module.__dict__)
    if test.get("mode") == "call":
        function = find_function(module.__dict__, test["function"])
        report["value"] = json.dumps(function(*test["args"], **test["kwargs"]), default=plain)


def _exit_code(error: SystemExit) -> int:
    if error.code is None or isinstance(error.code, int):
        code = error.code or 0
        # Python exits with -1 for what is no number of C.
        return (code if -sys.maxsize - 1 <= code <= sys.maxsize else -1) & 0xFF
    print(error.code, file=sys.stderr)
    return 1


def _print_traceback(error: BaseException, source: str) -> None:
    """Print the traceback as Python does, without the frames of this package."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(os.path.dirname(__file__)):
        trace = trace.tb_next
    try:
        import linecache  # these two are loaded only for programs that fail
        import traceback

        linecache.cache[NAME] = (len(source), None, [f"{line}\n" for line in source.split("\n")], NAME)
        text = "".join(traceback.format_exception(error.with_traceback(trace)))
        if len(text) > MAX_TRACEBACK_CHARS:
            text = f"{text[: MAX_TRACEBACK_CHARS // 2]}\n...\n{text[-MAX_TRACEBACK_CHARS // 2 :]}"
        sys.stderr.write(text)
    except BaseException:
        # out of memory, recursion limit, or an exception that cannot be printed
        os.write(2, f"{type(error).__name__}\n".encode())


def _join_threads() -> None:
    if (threading := sys.modules.get("threading")) is not None:
        threading._shutdown()


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
        try:
            if stream is not None and not getattr(stream, "closed", False):
                stream.flush()
        except ValueError:  # the program has taken its buffer
            pass


def _remove_names(module: ModuleType) -> None:
    """Remove the program's names in the order of the interpreter: files are written to their ends,
    and objects may print a last time.
    """
    # The program may have replaced them.
    sys.stdout = sys.__stdout__
    sys.stderr = sys.__stderr__
    names = module.__dict__
    for name in list(names):
        if name[:1] == "_" != name[1:2]:
            names[name] = None
    for name in list(names):
        if name != "__builtins__":
            names[name] = None


def _finish(code: int, report: dict[str, Any], module: ModuleType) -> NoReturn:
    """Exit as an interpreter does (threads, exit handlers, buffers, names), after writing the end
    report.
    """
    for last in (_join_threads, atexit._run_exitfuncs, _flush, lambda: _remove_names(module), _flush):
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
