"""Programs that want to be believed, to look into other runs, or to be evaluated."""

from __future__ import annotations

import asyncio
import json
import pickle
import struct
from pathlib import Path

import pytest

from agent_system.sandbox import FunctionCall, Reason, RunResult
from agent_system.sandbox.jail import program
from agent_system.sandbox.job import Job
from tests.agent_system.sandbox.arena import LIMITS, Arena
from tests.agent_system.sandbox.outside import run_outside


class Bomb:
    """Writes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple:
        return Path.write_text, (self.path, "evaluated")


async def test_pickles_in_the_output_are_bytes(arena: Arena, tmp_path: Path) -> None:
    mark = tmp_path / "evaluated"
    data = pickle.dumps(Bomb(mark))
    pickle.loads(data)
    assert mark.exists()
    mark.unlink()
    program = f"import os, sys\nfor fd in (1, 2, 3):\n    os.write(fd, {data!r})\ndef f():\n    return {data.decode('latin-1')!r}"
    assert (await arena.attack(program)).ok
    (called,) = await arena.sandbox.run_tests(program, [FunctionCall("f")])
    assert called.value is None or called.returned() == data.decode("latin-1")
    assert not mark.exists()


@pytest.mark.parametrize(
    "text",
    [
        "%s%s%s%n",
        "{0.__class__.__mro__}",
        "{settings}",
        "$(id)`id`",
        "__import__('os').getpid()",
        "\x1b]0;x\x07\r\n\0",
        "{{7*7}}",
    ],
)
async def test_formats_and_code_in_the_output_stay_text(text: str, arena: Arena) -> None:
    result = await arena.attack(f"print({text!r}, end='')\nraise ValueError({text!r})")
    assert result.stdout == text
    (called,) = await arena.sandbox.run_tests(f"def f():\n    return {text!r}", [FunctionCall("f")])
    assert called.returned() == text


async def test_forged_messages_of_our_protocol(arena: Arena) -> None:
    header = json.dumps(
        {"stopped": None, "status": 0, "seconds": 0.0, "cpu_s": 0.0, "blobs": [6, 0, 0, 0]}
    ).encode()
    message = struct.pack("!I", len(header)) + header + b"forged"
    program = f"""
import os
for fd in range(64):
    try:
        os.write(fd, {message!r})
    except OSError:
        pass
raise SystemExit(7)
"""
    result = await arena.attack(program)
    assert (result.reason, result.exit_code, result.value) == ("error", 7, None)
    assert result.stdout.encode() == message


@pytest.mark.parametrize(
    "said",
    [
        b'{"end": "returned"}',
        b'{"end": "compile"}',
        b'{"end": "raised", "type": "MemoryError"}',
        b"[" * 60000,
        b"\xff\xfe",
        b'{"end": 1e999, "type": {}}',
    ],
    ids=["returned", "compile", "memory", "nested", "bytes", "types"],
)
async def test_a_forged_end_report_never_makes_a_program_succeed(said: bytes, arena: Arena) -> None:
    result = await arena.attack(f"import os\nos.write(3, {said!r})\nos._exit(9)")
    assert (result.ok, result.exit_code, result.value) == (False, 9, None)
    assert result.reason in ("error", "compile", "memory")


async def test_a_program_cannot_blame_the_sandbox(arena: Arena) -> None:
    result = await arena.attack("import os\nos.write(3, b'OSError: no space')\nos._exit(125)")
    assert (result.reason, result.exit_code, result.message) == ("error", 125, "")


@pytest.mark.promised_by("every")
async def test_leaving_early_is_seen(arena: Arena) -> None:
    result = await arena.attack("import os\nprint('half', end='', flush=True)\nos._exit(0)\nprint('rest')")
    assert (result.stdout, result.exit_code, result.ok, result.finished) == ("half", 0, True, False)
    (called,) = await arena.sandbox.run_tests("import os\ndef f():\n    os._exit(0)", [FunctionCall("f")])
    assert (called.value, called.finished) == (None, False)
    assert (await arena.attack("print('all')\nexit()")).finished


async def test_tearing_down_the_harness_does_not_help(arena: Arena) -> None:
    program = """
import builtins, gc, json, os, sys
frame = sys._getframe()
while frame:
    frame.f_globals.clear() if frame.f_globals is not globals() else None
    frame = frame.f_back
for name in list(sys.modules):
    if name not in ("sys", "__main__", "builtins"):
        sys.modules.pop(name)
json.dumps = lambda *a, **k: "{}"
os.write = os._exit = lambda *a: None
builtins.__dict__.clear()
"""
    result = await arena.attack(program)
    assert not result.finished
    assert result.value is None


async def test_output_that_is_no_text(arena: Arena) -> None:
    result = await arena.attack(
        "import sys\nsys.stdout.buffer.write(bytes(range(256)))\nprint('\\udcff\\ud800')"
    )
    assert (result.ok, result.stdout[:3]) == (True, "\0\x01\x02")
    assert result.stdout.isprintable() is False


@pytest.mark.parametrize(
    "value",
    [
        "float('nan')",
        "10 ** 30_000",
        "[]",
        "object()",
        "lambda: 0",
        "{1, 2}",
        "range(3)",
        "(1, [2])",
        "{(1, 2): 3}",
    ],
)
async def test_values_are_json_or_nothing(value: str, arena: Arena) -> None:
    (result,) = await arena.sandbox.run_tests(f"def f():\n    return {value}", [FunctionCall("f")])
    plain = {"[]": [], "{1, 2}": [1, 2], "range(3)": [0, 1, 2], "(1, [2])": [1, [2]]}
    if value in plain:
        assert (result.reason, result.returned()) == ("ok", plain[value])
    elif value == "float('nan')":
        assert result.returned() != result.returned()
    else:
        with pytest.raises(ValueError):
            result.returned()


async def test_a_value_that_is_nested_too_deep_is_refused(arena: Arena) -> None:
    program = "def f():\n    x = []\n    for _ in range(400):\n        x = [x]\n    return x"
    (result,) = await arena.sandbox.run_tests(program, [FunctionCall("f")])
    with pytest.raises(ValueError, match="nested more than 200"):
        result.returned()


async def test_a_program_has_no_later_test_and_no_other_job_in_its_memory(
    arena: Arena, tmp_path: Path
) -> None:
    # Reads all memory around its own objects; writing from an address that is not mapped fails instead of
    # ending the program.
    scan = """
import ctypes, os
rest = "-".join(["olden", "{name}", "answer"]).encode()  # not the whole, which would be found here
libc = ctypes.CDLL(None)
r, w = os.pipe()
found = 0
for start in sorted({{id(x) >> 24 << 24 for x in (object(), bytes(5000), bytes(10**6), type("T", (), {{}}), b"x" * 300)}}):
    for page in range(start - (1 << 24), start + (1 << 25), 1 << 15):
        if libc.write(w, ctypes.c_void_p(page), 1 << 15) > 0:
            data = os.read(r, 1 << 16)
            at = data.find(rest)
            while at > 0:
                found += data[at - 1] == ord("g")
                at = data.find(rest, at + 1)
print(found)
"""
    planted = "planted = ['golden-own-answer']\n" + scan.format(name="own")
    assert int(run_outside(planted, tmp_path)) > 0
    secret = "golden-secret-answer\n"
    assert (await arena.sandbox.run("input()", secret * 50)).ok
    jobs = [arena.sandbox.run_tests(scan.format(name="secret"), ["", secret * 50]) for _ in range(3)]
    for results in await asyncio.gather(*jobs):
        assert [r.ok for r in results] == [True, True], results[0].stderr
        assert results[0].stdout == "0\n"


async def test_state_of_one_test_is_not_seen_by_the_next(arena: Arena) -> None:
    program = """
import builtins, json, os, random, sys
print(hasattr(builtins, "left"), "left" in os.environ, sys.getrecursionlimit(), json.dumps({}), os.getcwd() != "/", flush=True)
builtins.left = 1
os.environ["left"] = "1"
sys.setrecursionlimit(50)
json.dumps = None
os.chdir("/")
if os.fork() == 0:
    os.setsid()
    import time
    time.sleep(60)
"""
    results = await arena.sandbox.run_tests(program, [""] * 3)
    assert [r.stdout for r in results] == ["False False 50000 {} True\n"] * 3
    arena.nothing_is_left()


async def test_random_numbers_differ_and_hashes_do_not(arena: Arena) -> None:
    results = await arena.sandbox.run_tests(
        "import random\nprint(random.random(), hash('x'), list({'a', 'b', 'c'}))", [""] * 3
    )
    drawn, hashes = zip(*(r.stdout.split(maxsplit=1) for r in results), strict=True)
    assert (len(set(drawn)), len(set(hashes))) == (3, 1)


def test_arguments_that_are_no_json_are_refused() -> None:
    for test in (
        FunctionCall("f", [object()]),
        FunctionCall("f", [{1, 2}]),
        FunctionCall("f", ["x" * (3 << 20)]),
    ):
        refusal = Job("def f(x): return x", [test], LIMITS).message(test)
        assert isinstance(refusal, RunResult) and refusal.reason is Reason.REFUSED


async def test_what_is_too_large_is_refused_in_its_place(arena: Arena) -> None:
    big = await arena.sandbox.run("#" * (2 << 20))
    assert (big.reason, big.ok) == ("refused", False)
    results = await arena.sandbox.run_tests(
        "def f(*a): return len(a)",
        [FunctionCall("f", [1]), FunctionCall("f", [object()]), FunctionCall("f", [1, 2])],
    )
    assert [r.value or r.reason for r in results] == ["1", "refused", "2"]


async def test_half_a_surrogate_in_program_and_input(arena: Arena) -> None:
    results = await arena.sandbox.run_tests("print(len(input()), '\ud800')", ["\udfff!"])
    assert results[0].stdout == "2 ?\n"


FORGER = """
import marshal, os
evil = marshal.dumps(compile("print('evil')", "program.py", "exec"))
for fd in range(3, 64):
    try:
        os.write(fd, {told})
    except OSError:
        pass
print("mine", flush=True)
os._exit(125)
"""


@pytest.mark.parametrize("told", ['b"c" + len(evil).to_bytes(4) + evil', 'b"fnot my fault"'])
async def test_a_program_cannot_say_what_the_next_test_runs_nor_that_it_could_not_be_started(
    arena: Arena, told: str
) -> None:
    """The program is too large for its code to be sent to the init, so that the forged message is the
    first.
    """
    large = "".join(f"x{i} = {i}\n" for i in range(3000))
    results = await arena.sandbox.run_tests(large + FORGER.format(told=told), [""] * 2)
    assert [(r.stdout, r.reason, r.exit_code, r.message) for r in results] == [
        ("mine\n", "error", 125, "")
    ] * 2


async def test_programs_of_any_size_run_their_tests_alike(arena: Arena) -> None:
    """The first test compiles; where its code is small enough, the others are given it."""
    for lines in (1, 3000):
        program = (
            "import sys\n"
            + "".join(f"x{i} = {i}\n" for i in range(lines))
            + "def f():\n    1 / int(input())\nf()\n"
        )
        failed, passed, again = await arena.sandbox.run_tests(program, ["0", "1", "0"])
        assert (failed.reason, passed.reason, again.reason) == ("error", "ok", "error")
        assert failed.stderr == again.stderr
        assert f'File "program.py", line {lines + 3}, in f\n    1 / int(input())' in failed.stderr
    assert [r.reason for r in await arena.sandbox.run_tests("def (", [""] * 2)] == ["compile"] * 2


def test_incomplete_code_is_ignored() -> None:
    whole = program.COMPILED + (3).to_bytes(4) + b"abc"
    assert program.compiled_code(whole) == b"abc"
    assert [
        program.compiled_code(told) for told in (b"", whole[:3], whole[:-1], program.FAILED + b"OSError: no")
    ] == [b""] * 4
