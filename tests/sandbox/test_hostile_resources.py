"""Programs that take all there is: memory, disk, output, time."""

from __future__ import annotations

import asyncio
import time

import pytest

from agent_system.sandbox import Limits
from tests.sandbox.arena import LIMITS, Arena

SHORT = Limits(**{**vars(LIMITS), "wall_s": 0.4})
LONG = Limits(**{**vars(LIMITS), "wall_s": 30, "cpu_s": 20})


@pytest.mark.parametrize(
    "program",
    [
        "x = bytearray(10**9)",
        "x = []\nwhile True:\n    x.append(bytes(10**6))",
        "x = 'a' * 10**10",
        "import mmap\nkeep = [mmap.mmap(-1, 1 << 20) for _ in range(4000)]",
        "x = [[0] * 10**5 for _ in range(10**4)]",
        "print(' ' * 10**9)",
    ],
    ids=["block", "list", "text", "mmap", "table", "print"],
)
async def test_memory_bomb(program: str, arena: Arena) -> None:
    result = await arena.attack(program, limits=LONG)
    assert result.reason in ("memory", "error", "signal")
    assert "MemoryError" in result.stderr or "Cannot allocate memory" in result.stderr or result.reason == "signal"


@pytest.mark.promised_by("every")
async def test_memory_of_many_processes_is_added_up(arena: Arena) -> None:
    program = """
import os, time
for _ in range(8):
    if os.fork() == 0:
        break
keep = os.urandom(90 << 20)
time.sleep(60)
"""
    began = time.monotonic()
    assert (await arena.attack(program, limits=LONG)).reason == "memory"
    assert time.monotonic() - began < 25


async def test_output_in_drops_does_not_hide_memory(arena: Arena) -> None:
    program = """
import os, time
for _ in range(6):
    if os.fork() == 0:
        break
keep = os.urandom(90 << 20)
while True:
    os.write(1, b".")
    time.sleep(0.002)
"""
    assert (await arena.attack(program, limits=LONG)).reason == "memory"


async def test_disk_filler_with_one_file(arena: Arena) -> None:
    program = """
try:
    with open('f', 'wb') as f:
        for _ in range(100):
            f.write(bytes(1 << 20)); f.flush()
except OSError as error:
    print(error.errno, __import__('os').stat('f').st_size == 4 << 20)
"""
    assert (await arena.attack(program)).stdout == "27 True\n"


async def test_disk_filler_with_many_files(arena: Arena) -> None:
    program = """
import time
wrote = 0
try:
    for number in range(200):
        with open(str(number), "wb") as file:
            file.write(bytes(1 << 20))
        wrote += 1
except OSError as error:
    print(error.errno, wrote)
time.sleep(60)
"""
    if arena.level == "namespaces":
        result = await arena.attack(program.replace("time.sleep(60)", ""))
        assert (result.stdout, result.reason) == (f"28 {LIMITS.disk_mb}\n", "ok")
    else:
        assert (await arena.attack(program, limits=LONG)).reason == "disk"


async def test_disk_filler_with_empty_files(arena: Arena) -> None:
    program = """
made = 0
try:
    for made in range(10**6):
        open(str(made), 'w').close()
except OSError as error:
    print(error.errno, made < 10**4)
else:
    print('made all')
"""
    result = await arena.attack(program, limits=LONG)
    assert (result.stdout, result.reason) == (("28 True\n", "ok") if arena.level == "namespaces" else ("", "disk"))


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
async def test_a_gigabyte_of_output(stream: str, arena: Arena) -> None:
    program = f"import sys\nfor _ in range(1000):\n    sys.{stream}.write('x' * 10**6)"
    began = time.monotonic()
    result = await arena.attack(program)
    text = getattr(result, stream)
    assert (result.reason, text) == ("output", "x" * LIMITS.output_kb * 1024)
    assert time.monotonic() - began < 5


async def test_output_after_the_end(arena: Arena) -> None:
    program = "import atexit, os\natexit.register(lambda: [os.write(1, bytes(10**5)) for _ in range(100)])"
    assert (await arena.attack(program)).reason == "output"


@pytest.mark.parametrize(
    "program",
    [
        "while True:\n    pass",
        "import time\ntime.sleep(1000)",
        "input()\nwhile True:\n    pass",
        "import re\nre.match('(a+)+$', 'a' * 64 + 'b')",
        "print(9 ** 9 ** 9)",
        "import atexit\natexit.register(lambda: [0 for _ in iter(int, 1)])",
        "import threading\nthreading.Thread(target=lambda: [0 for _ in iter(int, 1)]).start()",
        "class A:\n    def __del__(self):\n        while True:\n            pass\ndel A",
        "import os\nr, w = os.pipe()\nos.read(r, 1)",
        "while True:\n    try:\n        while True:\n            pass\n    except BaseException:\n        pass",
    ],
    ids=["loop", "sleep", "stdin", "regex", "huge_integer", "exit_handler", "thread", "finalizer", "pipe", "catch_all"],
)
async def test_endless(program: str, arena: Arena) -> None:
    result = await arena.attack(program.replace("del A", "A()"), "x\n", limits=SHORT)
    assert (result.reason, result.exit_code, result.finished) == ("timeout", None, False)
    assert result.seconds < 5


@pytest.mark.promised_by("strongest")
async def test_the_cpu_limit_counts_cpu_and_not_the_clock(arena: Arena) -> None:
    one = Limits(**{**vars(LIMITS), "cpu_s": 1, "wall_s": 60})
    ignoring = "import signal\nsignal.signal(signal.SIGXCPU, signal.SIG_IGN)\n"
    sleeping = arena.sandbox.run("import time\ntime.sleep(1.2)", limits=one)
    looping = arena.sandbox.run_tests(
        f"if input():\n    {ignoring.replace(chr(10), chr(10) + '    ')}\nwhile True:\n    pass", ["\n", "x"], limits=one
    )
    (first, second), slept = await asyncio.gather(looping, sleeping)
    assert (first.reason, second.reason, slept.reason) == ("cpu", "cpu", "ok")
    assert 0.5 <= first.cpu_seconds < 2 and slept.cpu_seconds < 0.5


async def test_deep_recursion_is_an_error_of_the_program(arena: Arena) -> None:
    python = await arena.attack("def f(n):\n    return f(n + 1)\nf(0)")
    assert (python.reason, "RecursionError" in python.stderr) == ("error", True)


@pytest.mark.parametrize(
    "program",
    ["def f(n):\n    return f(n + 1)\nf(0)", "x = []\nfor _ in range(10**6):\n    x = [x]\nrepr(x)"],
    ids=["python", "native"],
)
async def test_deep_recursion_without_a_limit(program: str, arena: Arena) -> None:
    result = await arena.attack(f"import sys\nsys.setrecursionlimit(10**9)\n{program}", limits=SHORT)
    assert result.reason in ("signal", "memory", "error", "timeout")
    assert not result.ok


@pytest.mark.parametrize(
    "program",
    [
        "(" * 100_000,
        "x = " + "-" * 50_000 + "1",
        "a = b = " * 50_000 + "1",
        "if 1:\n" * 99 + "x",
        "x = 1 << 10**12",
        "x\0y",
        "x = '\ud800'",
        "\xef\xbb\xbf" * 3,
    ],
    ids=["brackets", "signs", "chain", "blocks", "constant", "null", "surrogate", "marks"],
)
async def test_programs_that_break_compilers(program: str, arena: Arena) -> None:
    for result in (await arena.attack(program), await arena.sandbox.compile(program)):
        assert result.reason in ("compile", "memory", "signal", "error", "ok", "timeout", "cpu")
        assert result.message == ""


async def test_descriptors_are_limited(arena: Arena) -> None:
    program = """
import os
made = 0
try:
    while True:
        os.dup(1)
        made += 1
except OSError as error:
    print(error.errno, made < 300)
"""
    assert (await arena.attack(program)).stdout == "24 True\n"
