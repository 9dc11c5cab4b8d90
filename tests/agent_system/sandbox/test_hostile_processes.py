"""Programs that attack other processes, or want to outlive their run."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from agent_system.sandbox.jail import tree
from agent_system.sandbox.local import LocalSandbox
from tests.agent_system.sandbox.arena import LIMITS, PATIENT, Arena
from tests.agent_system.sandbox.outside import run_outside
from tests.waiting import until
from verl.trainer.config.sandbox import SandboxConfig, SandboxLimitsConfig

SHORT = SandboxLimitsConfig(**{**vars(LIMITS), "wall_s": 0.6})
LONG = SandboxLimitsConfig(**{**vars(LIMITS), "wall_s": 60, "cpu_s": 20})
C = "import ctypes, errno, os\nc = ctypes.CDLL(None, use_errno=True)\n"


@pytest.mark.promised_by("seccomp")  # below it, and unprivileged, this kills whoever runs the tests
async def test_killing_everyone_kills_nobody(arena: Arena) -> None:
    program = """
import os, signal
for pid in (-1, os.getppid(), 1):
    try:
        os.kill(pid, signal.SIGKILL)
    except OSError:
        pass
print('survived')
"""
    result = await arena.attack(program)
    # In a namespace of its own, -1 means the program's own processes, and all others ignore it.
    assert (result.stdout, result.reason) == ("survived\n", "ok")


@pytest.mark.promised_by("seccomp")
async def test_a_process_of_someone_else_cannot_be_signalled(arena: Arena) -> None:
    with subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(60)"]) as other:
        program = f"""
import os
for number in (9, 19, 15):
    try:
        os.kill({other.pid}, number)
        print('sent')
    except OSError as error:
        print('refused')
"""
        result = await arena.attack(program)
        assert (result.stdout, other.poll()) == ("refused\n" * 3, None)
        other.kill()


@pytest.mark.promised_by("seccomp")
async def test_a_pipe_cannot_send_signals_for_its_owner(arena: Arena, tmp_path: Path) -> None:
    # The kernel sends the signal of F_SETSIG to the process of F_SETOWN when the pipe becomes readable:
    # kill(2) by another name.
    program = """
import fcntl, os
r, w = os.pipe()
try:
    fcntl.fcntl(r, 8, {pid})
    fcntl.fcntl(r, 10, 9)
    fcntl.fcntl(r, fcntl.F_SETFL, os.O_ASYNC)
    os.write(w, b"x")
    print("sent", end="")
except OSError as error:
    print("refused", error.errno, end="")
"""
    with subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(60)"]) as victim:
        assert run_outside(program.format(pid=victim.pid), tmp_path) == "sent"
        assert victim.wait(60) == -signal.SIGKILL
    with subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(60)"]) as victim:
        assert (await arena.attack(program.format(pid=victim.pid))).stdout == "refused 1"
        assert victim.poll() is None
        victim.kill()


@pytest.mark.promised_by("seccomp")
@pytest.mark.parametrize(
    "call",
    [
        "c.ptrace(16, os.getppid(), 0, 0)",
        "c.ptrace(0, 0, 0, 0)",
        "c.process_vm_readv(os.getppid(), None, 0, None, 0, 0)",
        "c.process_vm_writev(os.getppid(), None, 0, None, 0, 0)",
        "c.syscall(434, os.getppid(), 0)",
        "c.syscall(438, 3, 0, 0)",
        "c.prlimit(os.getppid(), 0, None, None)",
        "c.setpriority(0, 0, -5)",
        "c.sched_setaffinity(os.getppid(), 8, ctypes.create_string_buffer(8))",
        "c.setuid(0)",
        "c.execv(b'/bin/sh', (ctypes.c_char_p * 2)(b'/bin/sh', None))",
    ],
)
async def test_other_processes_are_out_of_reach(call: str, arena: Arena) -> None:
    result = await arena.attack(f"{C}print({call}, errno.errorcode[ctypes.get_errno()])")
    assert result.stdout == "-1 EPERM\n"


@pytest.mark.promised_by("every")
async def test_fork_bomb(arena: Arena) -> None:
    program = "import os\nwhile True:\n    try:\n        os.fork()\n    except OSError:\n        pass"
    began = time.monotonic()
    result = await arena.attack(program, limits=SHORT)
    assert result.reason in (("timeout", "cpu") if arena.counted else ("timeout", "cpu", "processes"))
    assert time.monotonic() - began < 30


MAKERS = {
    "processes": "os.fork() or time.sleep(30)",
    "threads": "threading.stack_size(65536); threading.Thread(target=time.sleep, args=(30,), daemon=True).start()",
}


@pytest.mark.parametrize("kind", MAKERS)
async def test_processes_and_threads_are_counted(arena: Arena, kind: str) -> None:
    program = f"""
import os, threading, time
made = 1
try:
    while made < 100:
        {MAKERS[kind]}
        made += 1
except (OSError, RuntimeError):
    print(made, flush=True)
    os._exit(0)
time.sleep(30)
"""
    result = await arena.attack(program, limits=LONG)
    if not arena.counted:
        assert (result.reason, result.stdout) == ("processes", "")
        return
    assert result.reason == "ok"
    made = int(result.stdout)
    assert made == LIMITS.processes if arena.level == "namespaces" else 2 <= made <= LIMITS.processes + 3


@pytest.mark.promised_by("every")
async def test_threads_and_processes_of_others_are_not_counted(arena: Arena) -> None:
    """The trainer starts threads, and programs beside an honest one take all the processes that they may
    have.
    """
    # programs that fork outlast all others, however slow
    endless = SandboxLimitsConfig(**{**vars(LIMITS), "wall_s": 900, "cpu_s": 20})
    sandbox = LocalSandbox(SandboxConfig(min_level="rlimits", workers=4, limits=endless), [arena.level])
    over = threading.Event()
    threads = [threading.Thread(target=over.wait, daemon=True) for _ in range(60)]
    fork = "    if os.fork() == 0:\n        break\n"
    forker = f"import os, time\nfor _ in range({LIMITS.processes - 1}):\n{fork}time.sleep(800)"
    several = """
import threading
threading.stack_size(1 << 16)
met = threading.Barrier(9)
for _ in range(8):
    threading.Thread(target=met.wait, daemon=True).start()
met.wait()
print("met")
"""
    forkers: list[asyncio.Task] = []
    try:
        for thread in threads:
            thread.start()
        assert [(await sandbox.run(program, limits=PATIENT)).stdout for program in ("print(1)", several)] == [
            "1\n",
            "met\n",
        ]
        forkers = [asyncio.create_task(sandbox.run(forker)) for _ in range(3)]
        await until(lambda: sum(len(tree.descendants(pid)) for pid in sandbox.pids) >= 3 * LIMITS.processes)
        assert [
            (await sandbox.run(program, limits=PATIENT)).stdout for program in ("print(1)", several) * 3
        ] == ["1\n", "met\n"] * 3
        assert sandbox.restarts == 0 and not any(run.done() for run in forkers)
    finally:
        over.set()
        for run in forkers:
            run.cancel()
        sandbox.close()


async def test_thread_flood(arena: Arena) -> None:
    program = """
import threading, time
threading.stack_size(1 << 16)
try:
    for made in range(100):
        threading.Thread(target=time.sleep, args=(30,), daemon=True).start()
    time.sleep(30)
except RuntimeError as error:
    print(error, made < 20)
"""
    result = await arena.attack(program, limits=LONG)
    assert (result.stdout, result.reason) == (
        ("can't start new thread True\n", "ok") if arena.counted else ("", "processes")
    )


@pytest.mark.promised_by("every")
async def test_orphan_in_its_own_session_dies_with_the_run(arena: Arena, tmp_path: Path) -> None:
    program = """
import os, signal, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        for number in range(1, 32):
            try:
                signal.signal(number, signal.SIG_IGN)
            except OSError:
                pass
        time.sleep(60)
    os._exit(0)
os.wait()
print("left one behind")
"""
    result = await arena.attack(program)
    assert (result.stdout, result.reason) == ("left one behind\n", "ok")
    assert result.seconds < 5


async def test_orphan_that_keeps_stdout_open_does_not_hold_the_run(arena: Arena) -> None:
    result = await arena.attack("import os, time\nif os.fork() == 0:\n    time.sleep(60)\nprint('done')")
    assert (result.stdout, result.reason) == ("done\n", "ok")
    assert result.seconds < 5


async def test_ignoring_all_signals_does_not_help(arena: Arena) -> None:
    program = """
import signal
for number in range(1, 65):
    try:
        signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError):
        pass
while True:
    pass
"""
    assert (await arena.attack(program, limits=SHORT)).reason == "timeout"


async def test_zombies(arena: Arena) -> None:
    program = """
import os, time
made = 0
try:
    for _ in range(100):
        if os.fork() == 0:
            os._exit(0)
        made += 1
    time.sleep(30)
except OSError:
    print(1 < made <= 20)
"""
    result = await arena.attack(program, limits=LONG)
    assert (result.stdout, result.reason) == (("True\n", "ok") if arena.counted else ("", "processes"))


async def test_a_program_that_stops_itself(arena: Arena) -> None:
    # The C library's raise sends the signal to the thread, which no level but the strongest two allows.
    result = await arena.attack(
        "import os, signal\nprint('stopping', flush=True)\nos.kill(os.getpid(), signal.SIGSTOP)", limits=SHORT
    )
    assert result.stdout == "stopping\n"
    assert result.reason == ("error" if arena.level == "seccomp" else "timeout")


async def test_closing_stdout_and_running_on(arena: Arena) -> None:
    result = await arena.attack(
        "import os\nfor fd in (0, 1, 2):\n    os.close(fd)\nwhile True:\n    pass", limits=SHORT
    )
    assert (result.reason, result.stdout) == ("timeout", "")


async def test_a_run_that_is_killed_from_inside_is_a_signal(arena: Arena) -> None:
    result = await arena.attack("import ctypes\nctypes.string_at(0)")
    assert (result.reason, result.exit_code) == ("signal", -signal.SIGSEGV)


async def test_multiprocessing_works_within_the_limits(arena: Arena) -> None:
    program = """
import multiprocessing
if __name__ == '__main__':
    p = multiprocessing.get_context('fork').Process(target=print, args=('child',))
    p.start(); p.join()
    print('parent')
"""
    assert (await arena.attack(program)).stdout == "child\nparent\n"
