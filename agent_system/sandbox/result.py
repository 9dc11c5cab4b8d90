"""Results of runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from signal import SIGKILL, SIGXCPU
from typing import Any

from agent_system.json_text import parse_json
from agent_system.sandbox.jail.program import RETURNED
from agent_system.sandbox.jail.runner import REPORT, STOPPED
from verl.trainer.config.sandbox import SandboxLimitsConfig


class Reason(StrEnum):
    """Why a run ended. Only `OK` is a program that ended by itself with exit code 0."""

    OK = "ok"
    ERROR = "error"
    COMPILE = "compile"
    SIGNAL = "signal"
    TIMEOUT = "timeout"
    CPU = "cpu"
    MEMORY = "memory"
    DISK = "disk"
    OUTPUT = "output"
    PROCESSES = "processes"
    SKIPPED = "skipped"
    REFUSED = "refused"
    SANDBOX = "sandbox"

    @property
    def is_limit(self) -> bool:
        """Whether the run exceeded a limit."""
        return self in (
            Reason.TIMEOUT,
            Reason.CPU,
            Reason.MEMORY,
            Reason.DISK,
            Reason.OUTPUT,
            Reason.PROCESSES,
        )

    @property
    def is_no_program(self) -> bool:
        """Whether the text is not a valid program, or could not be run."""
        return self in (Reason.COMPILE, Reason.REFUSED, Reason.SANDBOX)


@dataclass(frozen=True)
class RunResult:
    """The result of a run. All text is data: none of it is ever evaluated.

    Attributes:
        reason: why it ended: `error` (an exception or exit code other than 0), `compile` (not a
            valid program), `signal` (killed, also by itself), `timeout` (wall-clock time), `cpu`,
            `memory`, `disk`, `output`, `processes` (a limit), `skipped` (earlier tests timed out),
            `refused` (too large to be run), `sandbox` (the sandbox failed twice, see `message`).
        exit_code: exit code of the program, or the negative number of a signal; None if the program
            was ended by the sandbox.
        stdout: at most `SandboxLimitsConfig.output_kb`, invalid UTF-8 replaced.
        stderr: likewise; a traceback names the program `program.py`.
        seconds: wall-clock time.
        cpu_seconds: CPU time of its processes.
        finished: the program ran to the end of its source or to `sys.exit`; False after `os._exit`.
            A program can forge it.
        value: JSON of the called function's return value; None without a call.
        message: the error of the sandbox.
    """

    reason: Reason
    exit_code: int | None = None
    stdout: str = ""
    stderr: str = ""
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    finished: bool = False
    value: str | None = None
    message: str = ""

    @property
    def ok(self) -> bool:
        """Whether the program ended by itself with exit code 0."""
        return self.reason is Reason.OK

    def failure(self, most: int) -> str:
        """Return the reason and the last line of stderr in one line of at most `most` characters."""
        lines = self.stderr.strip().splitlines()
        return " ".join(f"failed ({self.reason}) {lines[-1] if lines else ''}".split())[:most]

    def returned(self) -> Any:
        """Return the called function's return value. Raise ValueError without one, or if it is not
        JSON.
        """
        if self.value is None:
            raise ValueError(f"no value: the run ended with {self.reason}")
        return parse_json(self.value)


def from_report(blobs: Sequence[bytes], limits: SandboxLimitsConfig) -> RunResult:
    """Return the result of a test from the report of a job's init.

    Args:
        blobs: `runner.REPORT`, stdout, stderr, the end report of the program's process, and the
            error if it could not be confined.
        limits: limits of the run.
    """
    report, out, err, end_report, failure = blobs
    index, status, seconds, cpu_s = REPORT.unpack(report)
    stopped = STOPPED[index]
    ending = _parse_end_report(end_report)
    reason = (
        Reason.SANDBOX
        if failure
        else Reason(stopped)
        if stopped is not None
        else _reason(status, cpu_s, ending, limits)
    )
    value = ending.get("value")
    return RunResult(
        reason=reason,
        exit_code=status if stopped is None else None,
        stdout=out.decode("utf-8", "replace"),
        stderr=err.decode("utf-8", "replace"),
        seconds=seconds,
        cpu_seconds=cpu_s,
        finished=stopped is None and ending.get("end") in ("returned", "exit"),
        value=value if reason is Reason.OK and isinstance(value, str) else None,
        message=failure.decode("utf-8", "replace"),
    )


def _parse_end_report(report: bytes) -> dict[str, Any]:
    """Return the end report of the program's process, which the program may have forged; empty if
    it is not a JSON object.
    """
    if report == RETURNED:  # the usual case
        return {"end": "returned"}
    try:
        ending = parse_json(report.decode())
    except ValueError:
        return {}
    return ending if isinstance(ending, dict) else {}


def _reason(status: int, cpu_s: float, ending: Mapping[str, Any], limits: SandboxLimitsConfig) -> Reason:
    """Return the reason of a program that ended by itself."""
    if status == 0:
        return Reason.OK
    # A program can ignore the first signal of its CPU limit, and is then killed. The kernel's CPU
    # count for limits is ahead of `cpu_s`.
    if status == -SIGXCPU or (status == -SIGKILL and cpu_s >= limits.cpu_s / 2):
        return Reason.CPU
    if status < 0:
        return Reason.SIGNAL
    if ending.get("end") == "compile":
        return Reason.COMPILE
    return Reason.MEMORY if ending.get("type") == "MemoryError" else Reason.ERROR
