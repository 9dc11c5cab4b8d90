"""A program prints what it prints as `python3 program.py < file`, at every level."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest

from agent_system.sandbox import SandboxLimitsConfig
from tests.agent_system.sandbox.arena import Arena

# How programs read, print, recurse and end: `### name`, then the program.
IDIOMS = dict(
    part.split("\n", 1)
    for part in (Path(__file__).parent / "idioms.txt").read_text(encoding="utf-8").split("### ")[1:]
)
STDIN = "3 4\n1 2 3 4\nabc def\n\n5\r\nlast é line"
NUMBERS = "123456 " * 60_000
OTHER_INPUTS = {
    "no input": ("try:\n    input()\nexcept EOFError as error:\n    print(error)", ""),
    "no input by its size": ("import os; print(os.read(0, os.fstat(0).st_size))", ""),
    "a large input": (
        "import sys\nn, *rest = map(int, sys.stdin.buffer.read().split())\nprint(n, len(rest), sum(rest))",
        NUMBERS,
    ),
    "a large input by its size": ("import os; print(len(os.read(0, os.fstat(0).st_size).split()))", NUMBERS),
    "a large input by its path": ("print(sum(map(int, open('/dev/stdin').read().split())))", NUMBERS),
    "an input that is not read": ("print(1)", NUMBERS),
    "line ends": ("import sys; print(repr(sys.stdin.read()))", "a\rb\r\nc\x0c\x1c\u2028\u0085d\n\n"),
    "line ends of input()": ("print([input() for _ in range(2)])", "a\x0cb\u2028c\r\nd\re\n"),
    "a byte order mark and a NUL": ("print(repr(input()))", "\ufeff1\x002\n"),
    "a long integer as its input": ("print(int(input()) + 1)", "9" * 5000 + "\n"),
}
PROGRAMS = {name: (source, STDIN) for name, source in IDIOMS.items()} | OTHER_INPUTS
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


async def test_a_program_prints_what_it_prints_in_plain_python(
    arena: Arena, plain: dict[str, Ending]
) -> None:
    different = {}
    for name, (source, stdin) in PROGRAMS.items():
        result = await arena.sandbox.run(source, stdin, limits=LIMITS)
        if (result.stdout, result.exit_code) != plain[name]:
            different[name] = (
                result.reason.value,
                result.stdout[:300],
                result.stderr[-300:],
                plain[name][0][:300],
            )
    assert not different, f"{len(different)} of {len(PROGRAMS)}: {different}"
    arena.nothing_is_left()


async def test_a_pool_of_a_thread_or_a_process_for_each_cpu_fits_the_limits(arena: Arena) -> None:
    program = """\
import concurrent.futures as futures, multiprocessing, os, time
def slow(x):
    time.sleep(0.01)
    return x
for make in (futures.ThreadPoolExecutor, futures.ProcessPoolExecutor, multiprocessing.Pool):
    with make() as pool:
        print(sum(pool.map(slow, range(40))), end=" ")
with futures.ThreadPoolExecutor(12) as pool:
    print(sum(pool.map(slow, range(40))), end=" ")
print(os.cpu_count() <= 2 and multiprocessing.cpu_count() <= 2)
"""
    result = await arena.sandbox.run(program, limits=LIMITS)
    assert result.stdout == "780 780 780 780 True\n", result
