"""What a program does to its standard streams, which it can open by name, reaches no other run."""

from __future__ import annotations

import pytest

from agent_system.sandbox import SandboxLimitsConfig
from tests.agent_system.sandbox.arena import LIMITS, Arena

TRIES = """
import mmap, os
tried = {
    "write": lambda: os.write(0, b"forged"),
    "pwrite": lambda: os.pwrite(0, b"forged", 0),
    "open": lambda: open("/dev/stdin", "w"),
    "append": lambda: os.open("/dev/fd/0", os.O_RDWR | os.O_APPEND),
    "truncate": lambda: os.truncate("/dev/stdin", 0),
    "ftruncate": lambda: os.ftruncate(0, 1 << 20),
    "chmod": lambda: os.chmod(os.path.realpath("/dev/stdin"), 0o777),
    "fchmod": lambda: os.fchmod(0, 0),
    "chmod of a pipe": lambda: os.fchmod(1, 0),
    "chown": lambda: os.fchown(1, os.getuid(), os.getgid()),
    "utime": lambda: os.utime(0, (0, 0)),
    "unlink": lambda: os.unlink(os.path.realpath("/dev/stdin")),
    "rename": lambda: os.rename(os.path.realpath("/dev/stdin"), os.path.realpath("/dev/stdout")),
    "create": lambda: open(os.path.join(os.path.dirname(os.path.realpath("/dev/stdin")), "left"), "w"),
    "link": lambda: os.link(os.path.realpath("/dev/stdin"), "kept"),
    "a shared mapping": lambda: mmap.mmap(0, 0, prot=mmap.PROT_READ | mmap.PROT_WRITE),
}
for name, action in tried.items():
    try:
        action()
    except OSError:
        continue
    except ValueError:
        continue
    print("possible:", name)
print(input(), end="")
"""


@pytest.mark.promised_by("landlock", each=True)
async def test_the_input_and_the_pipes_cannot_be_changed(arena: Arena) -> None:
    assert (await arena.attack(TRIES, "what was given")).stdout == "what was given"


async def test_a_program_that_blocks_its_pipes_ends_at_its_limits(arena: Arena) -> None:
    program = "import os\nfor _ in range(9):\n    open('/dev/stdout', 'w')\nos.close(0), os.close(1), os.close(2)\nwhile True:\n    pass"
    assert (
        await arena.attack(program, "x" * 300_000, SandboxLimitsConfig(cpu_s=1, wall_s=2))
    ).reason.is_limit


async def test_output_by_name_counts_for_the_limit(arena: Arena) -> None:
    program = "out = open('/dev/stdout', 'wb', buffering=0)\nwhile True:\n    out.write(b'x' * 65536)"
    result = await arena.attack(program)
    assert (result.reason, len(result.stdout)) == ("output", LIMITS.output_kb * 1024)


async def test_an_input_of_the_greatest_length_is_read(arena: Arena) -> None:
    """It is longer than any file of the program may be."""
    limits = SandboxLimitsConfig(cpu_s=20, wall_s=60, memory_mb=512, disk_mb=8)
    result = await arena.sandbox.run(
        "import os; print(os.fstat(0).st_size, len(os.read(0, 1 << 20)))", "7" * (64 << 20), limits=limits
    )
    assert (result.stdout, result.ok) == (f"{64 << 20} {1 << 20}\n", True)
    arena.nothing_is_left()


async def test_a_run_finds_its_own_input_alone(arena: Arena) -> None:
    """Runs of a program follow one another in the same process namespace, with the same files as their
    streams.
    """
    inputs = ["a longer first input", "second", "", "4"]
    results = await arena.sandbox.run_tests(
        "import os; print(repr(open('/dev/stdin').read()), os.fstat(0).st_size)", inputs
    )
    assert [result.stdout for result in results] == [f"{text!r} {len(text)}\n" for text in inputs]


@pytest.mark.promised_by("every")
async def test_a_limit_of_the_stack_is_no_way_to_more_memory(arena: Arena) -> None:
    program = (
        "import resource, sys\nresource.setrlimit(resource.RLIMIT_STACK, (-1, "
        "-1))\nsys.setrecursionlimit(10**9)\n"
        "class A:\n    def __getattr__(self, name):\n        return getattr(self, name + 'x' * 9999)\nA().x"
    )
    result = await arena.attack(program)
    assert not result.ok and result.reason not in ("timeout", "sandbox")
