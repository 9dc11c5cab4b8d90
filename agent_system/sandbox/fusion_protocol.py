"""SandboxFusion's `POST /run_code`: the request for a test, and the meaning of an answer.

A function call is sent as a wrapper program that runs the tested program and prints the value as
JSON after a random mark.
"""

from __future__ import annotations

import inspect
import json
import secrets
from collections.abc import Mapping
from typing import Any

from agent_system.sandbox.jail import callee
from agent_system.sandbox.job import Job
from agent_system.sandbox.result import Reason, RunResult

PATH = "/run_code"
SYNTAX_ERRORS = ("SyntaxError", "IndentationError", "TabError")
# The wrapper is one function, so that the program finds only its own names in `__main__`.
WRAPPER = """\
def _run(source, helpers, test, mark):
    import json, sys
    sys.set_int_max_str_digits(0)
    tools, test = {"__name__": "callee"}, json.loads(test)
    exec(helpers, tools)
    main = sys.modules["__main__"].__dict__
    for name in [name for name in main if not name.startswith("__")]:
        del main[name]
    compiled = compile(source, "program.py", "exec")
    tools["allow_deep_calls"]()
    if test.get("usual_names"):
        tools["give_usual_names"](compiled)
    if "function" in test:
        tools["become_module"](main)
    exec(compiled, main)
    if "function" not in test:
        return
    function = tools["find_function"](main, test["function"])
    value = json.dumps(function(*test["args"], **test["kwargs"]), default=tools["plain"])
    sys.stdout.flush()
    sys.stdout.write(mark + value)
"""
HELPERS = inspect.getsource(callee)


def request(job: Job, header: dict[str, Any], stdin: bytes) -> tuple[dict[str, Any], str]:
    """Return the body of the request for a test, and the mark before the printed value; the mark is
    empty without a function call.
    """
    mark = ""
    program = job.source.decode()
    if header.get("mode") == "compile":
        code = f"compile({program!r}, 'program.py', 'exec')"
    elif header:
        mark = f"\n{secrets.token_hex(16)}:" if "function" in header else ""
        code = f"{WRAPPER}\n_run({program!r}, {HELPERS!r}, {json.dumps(header)!r}, {mark!r})\n"
    else:
        code = program
    limits = job.limits
    body = {
        "code": code,
        "language": "python",
        "stdin": stdin.decode(),
        "compile_timeout": limits.wall_s,
        "run_timeout": limits.wall_s,
        "memory_limit_MB": limits.memory_mb,
        "files": {},
        "fetch_files": [],
    }
    return body, mark


def read_answer(answer: object, mark: str, job: Job) -> RunResult:
    """Return the result in an answer. Raise ValueError for JSON that is not an answer of this
    protocol.
    """
    if not isinstance(answer, Mapping) or "status" not in answer:
        raise ValueError(f"an answer without status: {str(answer)[:200]}")
    if answer["status"] == "SandboxError":
        return RunResult(
            Reason.SANDBOX, message=f"the server's sandbox failed: {str(answer.get('message', ''))[:500]}"
        )
    compiled = answer.get("compile_result")
    ran = answer.get("run_result")
    if isinstance(compiled, Mapping) and (
        compiled.get("status") != "Finished" or compiled.get("return_code") not in (0, None)
    ):
        return RunResult(Reason.COMPILE, stdout=_text(compiled, "stdout"), stderr=_text(compiled, "stderr"))
    if not isinstance(ran, Mapping):
        raise ValueError(f"an answer without run_result: {str(answer)[:200]}")
    status = ran.get("status")
    code = ran.get("return_code")
    if status not in ("Finished", "TimeLimitExceeded") or (
        status == "Finished" and not isinstance(code, int)
    ):
        raise ValueError(f"run_result has status {status!r} and return_code {code!r}")
    out = _text(ran, "stdout")
    err = _text(ran, "stderr")
    value = None
    # Random, so no program can print it. The last one counts: the wrapper writes behind the
    # program.
    if mark and mark in out:
        out, _, value = out.rpartition(mark)
    reason = Reason.TIMEOUT if status == "TimeLimitExceeded" else _reason(int(code or 0), err)
    limit = job.limits.output_kb * 1024
    # The server bounds no output.
    if max(len(out), len(err), len(value or "")) > limit:
        reason = Reason.OUTPUT
        out = out[:limit]
        err = err[:limit]
    return RunResult(
        reason=reason,
        exit_code=code if status == "Finished" else None,
        stdout=out,
        stderr=err,
        seconds=float(ran.get("execution_time") or 0.0),
        finished=reason is Reason.OK and (not mark or value is not None),
        value=value if reason is Reason.OK else None,
    )


def _reason(code: int, err: str) -> Reason:
    last = err.rstrip().rpartition("\n")[2]
    if code == 0:
        return Reason.OK
    if code < 0:
        return Reason.SIGNAL
    if last.startswith(SYNTAX_ERRORS):
        return Reason.COMPILE
    return Reason.MEMORY if last.startswith("MemoryError") else Reason.ERROR


def _text(part: Mapping[str, Any], name: str) -> str:
    value = part.get(name)
    if value is not None and not isinstance(value, str):
        raise ValueError(f"{name} is {type(value).__name__}, expected text")
    return value or ""
