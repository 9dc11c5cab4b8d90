"""A program prints what it prints as `python3 program.py < file`, at every level."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from agent_system.sandbox import SandboxLimitsConfig
from tests.agent_system.sandbox.arena import Arena
from tests.agent_system.sandbox.idioms import OTHER_INPUTS, PRINTING, READING, RUNNING, STDIN

PROGRAMS = {name: (source, STDIN) for name, source in (READING | PRINTING | RUNNING).items()} | OTHER_INPUTS
LIMITS = SandboxLimitsConfig(cpu_s=20, wall_s=60)
# Judges give programs a large stack and, as PyPy and Python before 3.11, integers of any length.
ENVIRONMENT = {"PYTHONHASHSEED": "0", "PYTHONINTMAXSTRDIGITS": "0", "PYTHONIOENCODING": "utf-8:strict"}
STACK_BYTES = 64 << 20

Ending = tuple[str, int | None]


def in_plain_python(source: str, stdin: str, folder: Path) -> Ending:
    """The output and exit code of `python3 program.py < file`."""
    (folder / "program.py").write_text(source, encoding="utf-8")
    (folder / "stdin").write_bytes(stdin.encode())
    hard = resource.getrlimit(resource.RLIMIT_STACK)[1]
    with open(folder / "stdin", "rb") as file:
        run = subprocess.run(
            [sys.executable, "program.py"],
            stdin=file,
            capture_output=True,
            cwd=folder,
            env=ENVIRONMENT,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_STACK, (STACK_BYTES, hard)),
        )
    (folder / "a.txt").unlink(missing_ok=True)
    return run.stdout.decode(), run.returncode


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ending]:
    folder = tmp_path_factory.mktemp("plain")
    return {name: in_plain_python(source, stdin, folder) for name, (source, stdin) in PROGRAMS.items()}


def test_there_are_many_programs() -> None:
    assert len(PROGRAMS) >= 100


async def test_a_program_prints_what_it_prints_in_plain_python(arena: Arena, plain: dict[str, Ending]) -> None:
    assert os.environ.get("PYTHONHASHSEED") != "random"
    different = {}
    for name, (source, stdin) in PROGRAMS.items():
        result = await arena.sandbox.run(source, stdin, limits=LIMITS)
        if (result.stdout, result.exit_code) != plain[name]:
            different[name] = (result.reason.value, result.stdout[:300], result.stderr[-300:], plain[name][0][:300])
    assert not different, f"{len(different)} of {len(PROGRAMS)}: {different}"
    arena.nothing_is_left()
