"""What became of a run."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from signal import SIGKILL, SIGXCPU
from typing import Any

from agent_system.sandbox.jail.program import RETURNED
from agent_system.sandbox.jail.runner import REPORT, STOPPED
from verl.trainer.config.sandbox import SandboxLimitsConfig

MOST_NESTING = 200


class Reason(StrEnum):
    """Why a run ended as it did. Only `OK` is a program that ended by itself with exit code 0."""

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
        """The run met a limit."""
        return self in (Reason.TIMEOUT, Reason.CPU, Reason.MEMORY, Reason.DISK, Reason.OUTPUT, Reason.PROCESSES)

    @property
    def is_no_program(self) -> bool:
        """The text is no program, or none that can be run."""
        return self in (Reason.COMPILE, Reason.REFUSED, Reason.SANDBOX)


@dataclass(frozen=True)
class RunResult:
    """What became of a run. All text is data: nothing of it is ever evaluated.

    Attributes:
        reason: why it ended: `error` (an exception or exit code other than 0), `compile` (no valid program), `signal` (killed, also by
            itself), `timeout` (clock), `cpu`, `memory`, `disk`, `output`, `processes` (a limit), `skipped` (earlier tests ran out of time),
            `refused` (too large to be run), `sandbox` (the sandbox failed twice, see `message`).
        exit_code: of the program, the negative number of a signal; None where it did not end by itself.
        stdout: at most `SandboxLimitsConfig.output_kb`, bytes that are no UTF-8 replaced.
        stderr: likewise; a traceback names the program `program.py`.
        seconds: on the clock.
        cpu_seconds: of its processes.
        finished: the program's text was run to its end or to an exit of Python's; False after `os._exit`. A program can forge it.
        value: JSON of what a called function returned; None without a call.
        message: what went wrong with the sandbox.
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
        """The program ended by itself with exit code 0."""
        return self.reason is Reason.OK

    def failure(self, most: int) -> str:
        """How it failed, in one line of at most `most` characters: the reason and the last line of stderr."""
        lines = self.stderr.strip().splitlines()
        return " ".join(f"failed ({self.reason}) {lines[-1] if lines else ''}".split())[:most]

    def returned(self) -> Any:
        """What the called function returned. Raises ValueError when there is nothing, or nothing that is JSON."""
        if self.value is None:
            raise ValueError(f"no value: the run ended with {self.reason}")
        return parse_json(self.value)


def parse_json(text: str) -> Any:
    """Parse text that a program wrote. Raises ValueError for anything that is no JSON or is nested more than `MOST_NESTING` deep."""
    try:
        value = json.loads(text)
    except RecursionError as error:
        raise ValueError("JSON that is nested too deep") from error
    level: list[Any] = [value]
    for _ in range(MOST_NESTING):
        level = [inner for outer in level for inner in _inside(outer)]
        if not level:
            return value
    raise ValueError(f"JSON that is nested more than {MOST_NESTING} deep")


def _inside(value: Any) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


def from_report(blobs: Sequence[bytes], limits: SandboxLimitsConfig) -> RunResult:
    """The result of a test as a job's init reports it.

    Args:
        blobs: `runner.REPORT`, stdout, stderr, what the program said of its end, and the error of a program that could not be confined.
        limits: of the run.
    """
    report, out, err, said, failure = blobs
    place, status, seconds, cpu_s = REPORT.unpack(report)
    stopped, story = STOPPED[place], _story(said)
    reason = Reason.SANDBOX if failure else Reason(stopped) if stopped is not None else _reason(status, cpu_s, story, limits)
    value = story.get("value")
    return RunResult(
        reason=reason,
        exit_code=status if stopped is None else None,
        stdout=out.decode("utf-8", "replace"),
        stderr=err.decode("utf-8", "replace"),
        seconds=seconds,
        cpu_seconds=cpu_s,
        finished=stopped is None and story.get("end") in ("returned", "exit"),
        value=value if reason is Reason.OK and isinstance(value, str) else None,
        message=failure.decode("utf-8", "replace"),
    )


def _story(said: bytes) -> dict[str, Any]:
    """What the program's process said of its end, which the program may have written itself."""
    if said == RETURNED:  # most of them
        return {"end": "returned"}
    try:
        story = parse_json(said.decode())
    except ValueError:
        return {}
    return story if isinstance(story, dict) else {}


def _reason(status: int, cpu_s: float, story: Mapping[str, Any], limits: SandboxLimitsConfig) -> Reason:
    """Of a program that ended by itself."""
    if status == 0:
        return Reason.OK
    # A program can ignore the first signal of its CPU limit, and is then killed. The kernel's count for limits runs ahead of the real one.
    if status == -SIGXCPU or (status == -SIGKILL and cpu_s >= limits.cpu_s / 2):
        return Reason.CPU
    if status < 0:
        return Reason.SIGNAL
    if story.get("end") == "compile":
        return Reason.COMPILE
    return Reason.MEMORY if story.get("type") == "MemoryError" else Reason.ERROR
