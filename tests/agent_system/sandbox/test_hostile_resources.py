"""Programs that take all there is: memory, disk, output, time."""

from __future__ import annotations

import asyncio
import platform
import time
from pathlib import Path

import pytest

from agent_system.sandbox.jail.confine import OPEN_FILES
from tests.agent_system.sandbox.arena import LIMITS, Arena
from verl.trainer.config.sandbox import SandboxLimitsConfig

EXIT = 60 if platform.machine() == "x86_64" else 93
SHORT = SandboxLimitsConfig(**{**vars(LIMITS), "wall_s": 0.4})
LONG = SandboxLimitsConfig(**{**vars(LIMITS), "wall_s": 30, "cpu_s": 20})


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
    assert (
        "MemoryError" in result.stderr
        or "Cannot allocate memory" in result.stderr
        or result.reason == "signal"
    )


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


@pytest.mark.promised_by("every")
async def test_memory_of_a_process_whose_first_thread_has_ended_is_counted(arena: Arena) -> None:
    program = f"""
import ctypes, os, threading, time
def hold():
    keep = os.urandom(60 << 20)
    time.sleep(60)
for _ in range(4):
    if os.fork() == 0:
        threading.Thread(target=hold).start()
        time.sleep(0.1)
        ctypes.CDLL(None).syscall({EXIT}, 0)
time.sleep(60)
"""
    assert (await arena.attack(program, limits=LONG)).reason == "memory"


@pytest.mark.promised_by("seccomp", each=True)
async def test_there_is_no_shared_memory_without_a_file(arena: Arena) -> None:
    program = """
import mmap, os
def taken(make):
    try:
        return len(make())
    except OSError as error:
        return error.errno
def zero():
    return mmap.mmap(os.open("/dev/zero", os.O_RDWR), 4096)
print(taken(lambda: mmap.mmap(-1, 4096)), taken(lambda: mmap.mmap(-1, 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)))
with open("own", "w+b") as file:
    file.truncate(4096)
    print(taken(lambda: mmap.mmap(file.fileno(), 4096)), taken(zero))
"""
    first, second = (await arena.attack(program)).stdout.splitlines()
    assert first == "12 4096"
    assert second in {"namespaces": ["4096 2"], "landlock": ["4096 13"]}.get(arena.level, ["4096 4096"])


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


# What a socket of usual size takes: the last message is let in whole while the buffer has room.
SOCKET_BYTES = 2 * int(Path("/proc/sys/net/core/wmem_default").read_text())


@pytest.mark.promised_by("seccomp")
async def test_buffers_of_sockets_and_pipes_cannot_be_made_larger(arena: Arena) -> None:
    program = """
import fcntl, os, socket
def refused(call, *arguments):
    try:
        call(*arguments)
    except PermissionError:
        return True
one, other = socket.socketpair()
sndbuf, rcvbuf, sndbufforce, rcvbufforce = 7, 8, 32, 33
for name in (sndbuf, rcvbuf, sndbufforce, rcvbufforce):
    print(refused(one.setsockopt, socket.SOL_SOCKET, name, 1 << 24), refused(other.setsockopt, socket.SOL_SOCKET, name, 1 << 24))
reading, writing = os.pipe()
print(refused(fcntl.fcntl, writing, 1031, 1 << 20), fcntl.fcntl(reading, 1032) <= 1 << 16)
"""
    assert (await arena.attack(program)).stdout == "True True\n" * 5


@pytest.mark.promised_by("seccomp")
@pytest.mark.parametrize("kind", ["SOCK_STREAM", "SOCK_SEQPACKET"])
async def test_the_kernel_holds_no_more_for_a_program_than_its_descriptors_allow(
    kind: str, arena: Arena
) -> None:
    processes, most = 3, OPEN_FILES * SOCKET_BYTES
    # Each of the processes stops by itself at `most`, so nothing is at risk where the limits do not hold. The
    # last one hands sockets on and closes its own, until the kernel takes no more.
    program = f"""
import os, socket
def fill(one):
    held = 0
    for size in (65536, 4096, 1):
        try:
            while held < {SOCKET_BYTES} * 2:
                held += one.send(bytes(size))
        except BlockingIOError:
            pass
    return held
def pair():
    try:
        pair = socket.socketpair(socket.AF_UNIX, socket.{kind})
    except OSError:
        return None
    for one in pair:
        try:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 24)
        except OSError:
            pass
        one.setblocking(False)
    return pair
reading, writing = os.pipe()
go_on, wait = os.pipe()
for _ in range({processes - 1}):
    if os.fork() == 0:
        os.close(wait)
        kept, held = [], 0
        while held < {most} and (made := pair()):
            kept.append(made)
            held += sum(map(fill, made))
        os.write(writing, f"{{held}}\\n".encode())
        os.read(go_on, 1)
        os._exit(0)
carrier, held, handed = socket.socketpair(), 0, 0
try:
    while held < {2 * most}:
        one, other = pair()
        held += fill(one)
        socket.send_fds(carrier[0], [b"x"], [other.fileno()])
        handed += 1
        one.close()
        other.close()
except OSError as error:
    print(error.errno, handed)
total = held
with open(reading) as lines:
    total += sum(int(lines.readline()) for _ in range({processes - 1}))
print(total)
"""
    result = await arena.attack(program, limits=LONG)
    (error, handed), (total,) = [[int(word) for word in line.split()] for line in result.stdout.splitlines()]
    assert (result.reason, error) == ("ok", 109)
    assert handed <= OPEN_FILES + 1
    assert 1 << 20 < total <= (2 * processes + 1) * most


async def test_programs_that_do_several_things_at_once_have_descriptors_enough(arena: Arena) -> None:
    program = """
import asyncio, socket
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import Pipe, Process
async def talk():
    one, other = socket.socketpair()
    (_, writer), (reader, last) = [await asyncio.open_connection(sock=end) for end in (one, other)]
    writer.write(b"said\\n")
    await writer.drain()
    line = await reader.readline()
    return line, await asyncio.gather(*[asyncio.to_thread(abs, -n) for n in range(4)])
def square(end, n):
    end.send(n * n)
print(asyncio.run(talk()), list(ThreadPoolExecutor(4).map(abs, [-1, 2])))
pairs = [Pipe(duplex) for duplex in (True, False) * 3]
workers = [Process(target=square, args=(end, n)) for n, (_, end) in enumerate(pairs)]
for worker in workers:
    worker.start()
print([end.recv() for end, _ in pairs], [worker.join() for worker in workers] and len([open(str(n), "w") for n in range(30)]))
"""
    result = await arena.attack(program, limits=LONG)
    assert (result.stdout, result.stderr) == (
        "(b'said\\n', [0, 1, 2, 3]) [1, 2]\n[0, 1, 4, 9, 16, 25] 30\n",
        "",
    )


async def test_disk_filler_with_one_file(arena: Arena) -> None:
    program = f"""
try:
    with open('f', 'wb') as f:
        for _ in range(100):
            f.write(bytes(1 << 20)); f.flush()
except OSError as error:
    print(error.errno, __import__('os').stat('f').st_size == {LIMITS.disk_mb} << 20)
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
    assert (result.stdout, result.reason) == (
        ("28 True\n", "ok") if arena.level == "namespaces" else ("", "disk")
    )


@pytest.mark.timing
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
        "import atexit\natexit.register(lambda: any(iter(int, 1)))",
        "import threading\nthreading.Thread(target=lambda: any(iter(int, 1))).start()",
        "class A:\n    def __del__(self):\n        while True:\n            pass\ndel A",
        "import os\nr, w = os.pipe()\nos.read(r, 1)",
        "while True:\n    try:\n        while True:\n            pass\n    except BaseException:\n        "
        "pass",
    ],
    ids=[
        "loop",
        "sleep",
        "stdin",
        "regex",
        "huge_integer",
        "exit_handler",
        "thread",
        "finalizer",
        "pipe",
        "catch_all",
    ],
)
async def test_endless(program: str, arena: Arena) -> None:
    result = await arena.attack(program.replace("del A", "A()"), "x\n", limits=SHORT)
    assert (result.reason, result.exit_code, result.finished) == ("timeout", None, False)
    assert result.seconds < 5


@pytest.mark.promised_by("strongest")
async def test_the_cpu_limit_counts_cpu_and_not_the_clock(arena: Arena) -> None:
    one = SandboxLimitsConfig(**{**vars(LIMITS), "cpu_s": 1, "wall_s": 60})
    ignoring = "import signal\nsignal.signal(signal.SIGXCPU, signal.SIG_IGN)\n"
    sleeping = arena.sandbox.run("import time\ntime.sleep(1.2)", limits=one)
    looping = arena.sandbox.run_tests(
        f"if input():\n    {ignoring.replace(chr(10), chr(10) + '    ')}\nwhile True:\n    pass",
        ["\n", "x"],
        limits=one,
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
    print(error.errno, made < 64)
"""
    assert (await arena.attack(program)).stdout == "24 True\n"
