"""A program with its tests, as queued for a sandbox."""

from __future__ import annotations

import functools
import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agent_system.sandbox.result import Reason, RunResult
from verl.trainer.config.sandbox import SandboxLimitsConfig

MAX_PROGRAM_BYTES = 1 << 20
MAX_STDIN_BYTES = 64 << 20
MAX_ARGUMENT_BYTES = 2 << 20


@dataclass(frozen=True)
class FunctionCall:
    """A test by a function call.

    Attributes:
        function: a name that the program defines, or `Class.method` (the class is instantiated
            without arguments). A program without that method may have a function of its name, one
            without the function a class `Solution` with that method.
        args: positional arguments, JSON-serializable.
        kwargs: keyword arguments, JSON-serializable.
        stdin: standard input of the program.
    """

    function: str
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    stdin: str = ""


# A text is the standard input of the program.
Test = str | FunctionCall


@dataclass
class Job:
    """A program and its tests.

    Attributes:
        program: Python source, which may begin with a byte order mark.
        tests: one run each, in order.
        limits: limits of each run.
        usual_names: define the names that judges of programming tasks import first, where the
            program mentions them, and allow their depth of nested calls.
        max_timeouts: after this many runs that ended with `timeout` or `cpu` the rest is `skipped`;
            0 runs all.
        compile_only: check whether the program compiles, without running it.
        again: the sandbox has failed to run these tests before; they get a fresh worker.
        abandoned: set when the caller no longer waits for the results.
    """

    program: str
    tests: Sequence[Test]
    limits: SandboxLimitsConfig
    usual_names: bool = False
    max_timeouts: int = 0
    compile_only: bool = False
    again: bool = False
    abandoned: threading.Event = field(default_factory=threading.Event)

    @functools.cached_property
    def source(self) -> bytes:
        """The program as sent, without a byte order mark, which Python skips at the start of a
        file.
        """
        return encode(self.program.removeprefix("\ufeff"))

    def message(self, test: Test) -> tuple[dict[str, Any], bytes] | RunResult:
        """Return the header of one test and the program's stdin, or the result of a test that
        cannot be sent.
        """
        if len(self.source) > MAX_PROGRAM_BYTES:
            return _refused(f"a program of more than {MAX_PROGRAM_BYTES} bytes")
        if self.compile_only:
            return {"mode": "compile"}, b""
        header: dict[str, Any] = {"usual_names": True} if self.usual_names else {}
        if isinstance(test, FunctionCall):
            header |= {
                "mode": "call",
                "function": test.function,
                "args": list(test.args),
                "kwargs": dict(test.kwargs),
            }
            try:
                size = len(json.dumps(header))
            except (TypeError, ValueError, RecursionError) as error:
                return _refused(f"arguments of {test.function} are no JSON: {error}")
            if size > MAX_ARGUMENT_BYTES:
                return _refused(f"arguments of more than {MAX_ARGUMENT_BYTES} bytes")
        stdin = encode(test.stdin if isinstance(test, FunctionCall) else test)
        return (
            (header, stdin)
            if len(stdin) <= MAX_STDIN_BYTES
            else _refused(f"more than {MAX_STDIN_BYTES} bytes of stdin")
        )


def _refused(why: str) -> RunResult:
    return RunResult(Reason.REFUSED, message=why)


def encode(text: str) -> bytes:
    """Return `text` as UTF-8, with question marks for characters without a UTF-8 form (unpaired
    surrogates in a model's reply).
    """
    return text.encode("utf-8", "replace")
