"""What is to be run."""

from __future__ import annotations

import functools
import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agent_system.sandbox.result import Reason, RunResult
from verl.trainer.config.sandbox import SandboxLimitsConfig

MOST_PROGRAM_BYTES = 1 << 20
MOST_STDIN_BYTES = 64 << 20
MOST_ARGUMENT_BYTES = 2 << 20


@dataclass(frozen=True)
class FunctionCall:
    """A test by a function call.

    Attributes:
        function: a name that the program defines, or `Class.method` (the class is made without arguments).
        args: positional arguments, all JSON.
        kwargs: keyword arguments, all JSON.
        stdin: what the program can read.
    """

    function: str
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    stdin: str = ""


# Text is what the program reads on stdin.
Test = str | FunctionCall


@dataclass
class Job:
    """A program and what to do with it.

    Attributes:
        program: Python source, which may begin with a byte order mark.
        tests: one run each, in order.
        limits: of each run.
        max_timeouts: after so many runs that ended with `timeout` or `cpu` the rest is `skipped`; 0 runs all.
        compile_only: do not run, say whether it compiles.
        again: the sandbox has failed to run these tests before; they get a worker that has run nothing else.
        abandoned: set when nobody waits any more.
    """

    program: str
    tests: Sequence[Test]
    limits: SandboxLimitsConfig
    max_timeouts: int = 0
    compile_only: bool = False
    again: bool = False
    abandoned: threading.Event = field(default_factory=threading.Event)

    @functools.cached_property
    def source(self) -> bytes:
        """The program as it is sent, without the mark that Python skips at the start of a file."""
        return encode(self.program.removeprefix("\ufeff"))

    def message(self, test: Test) -> tuple[dict[str, Any], bytes] | RunResult:
        """What the sandbox is told of one test and what the program reads; the result of one that is not worth sending."""
        if len(self.source) > MOST_PROGRAM_BYTES:
            return _refused(f"a program of more than {MOST_PROGRAM_BYTES} bytes")
        if self.compile_only:
            return {"mode": "compile"}, b""
        header: dict[str, Any] = {}
        if isinstance(test, FunctionCall):
            header = {"mode": "call", "function": test.function, "args": list(test.args), "kwargs": dict(test.kwargs)}
            try:
                size = len(json.dumps(header))
            except (TypeError, ValueError, RecursionError) as error:
                return _refused(f"arguments of {test.function} are no JSON: {error}")
            if size > MOST_ARGUMENT_BYTES:
                return _refused(f"arguments of more than {MOST_ARGUMENT_BYTES} bytes")
        stdin = encode(test.stdin if isinstance(test, FunctionCall) else test)
        return (header, stdin) if len(stdin) <= MOST_STDIN_BYTES else _refused(f"more than {MOST_STDIN_BYTES} bytes of stdin")


def _refused(why: str) -> RunResult:
    return RunResult(Reason.REFUSED, message=why)


def encode(text: str) -> bytes:
    """UTF-8; what has no UTF-8 form (half a surrogate pair that a model wrote) becomes a question mark."""
    return text.encode("utf-8", "replace")
