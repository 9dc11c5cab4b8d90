"""The pool of the local sandbox: order, repair, waiting, ending."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent_system.sandbox import (
    FunctionCall,
    Reason,
    RunResult,
    SandboxError,
    close_shared,
    configure,
    make_sandbox,
    shared_failures,
    shared_sandbox,
)
from agent_system.sandbox.jail import tree
from agent_system.sandbox.job import Job
from agent_system.sandbox.levels import LEVELS, level_error, rank
from agent_system.sandbox.local import LocalSandbox
from agent_system.sandbox.packages import find_packages
from agent_system.sandbox.worker import SandboxWorker, WorkerError
from tests.agent_system.sandbox.arena import IDLE, LIMITS, PATIENT, Arena, offered
from tests.house.source import ROOT
from tests.waiting import until, wait_until
from verl.trainer.config.sandbox import SandboxConfig, SandboxLimitsConfig
from verl.trainer.config.spec import ConfigError

SETTINGS = SandboxConfig(min_level="rlimits", workers=2, limits=LIMITS)


@pytest.fixture
def pool() -> Iterator[LocalSandbox]:
    sandbox = LocalSandbox(SETTINGS)
    yield sandbox
    sandbox.close()


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_until_dead(pids: list[int]) -> None:
    wait_until(lambda: not any(alive(pid) for pid in pids), within_s=50)  # some sleep for a minute


async def with_programs(pool: LocalSandbox, count: int) -> list[int]:
    """Wait for so many workers that run a program; returns their process ids."""

    def running() -> list[int]:
        found = [pid for pid in pool.pids if len(tree.descendants(pid)) > IDLE]
        return found if len(found) >= count else []

    return await until(running)


async def test_results_are_in_the_order_of_the_tests(arena: Arena) -> None:
    ends = "if n == 2:\n    raise SystemExit(3)\nif n == 3:\n    while True: pass\n"
    program = f"n = int(input())\n{ends}print(n * n)"
    tests = [str(n) for n in range(6)]
    limits = SandboxLimitsConfig(**{**vars(LIMITS), "wall_s": 1.5})
    several = await asyncio.gather(
        *[arena.sandbox.run_tests(program, tests, limits=limits) for _ in range(3)]
    )
    for results in several:
        assert [(r.stdout, r.reason.value) for r in results] == [
            ("0\n", "ok"), ("1\n", "ok"), ("", "error"), ("", "timeout"), ("16\n", "ok"), ("25\n", "ok"),
        ]  # fmt: skip


@pytest.mark.promised_by("strongest")
async def test_after_two_slow_tests_the_rest_is_skipped(arena: Arena) -> None:
    limits = SandboxLimitsConfig(**{**vars(LIMITS), "wall_s": 1.0})
    results = await arena.sandbox.run_tests(
        "if input(): \n    while True: pass\nprint(1)", ["", "x", "", "x", "", ""], limits=limits
    )
    assert [r.reason.value for r in results] == ["error", "timeout", "error", "timeout", "skipped", "skipped"]
    assert await arena.sandbox.run_tests("print(1)", []) == []


@pytest.mark.timing
@pytest.mark.promised_by("strongest")
async def test_waiting_runs_do_not_block_the_event_loop(arena: Arena) -> None:
    worst, done = 0.0, False

    async def watch() -> None:
        nonlocal worst
        while not done:
            began = time.perf_counter()
            await asyncio.sleep(0.005)
            worst = max(worst, time.perf_counter() - began)

    watching = asyncio.create_task(watch())
    results = await asyncio.gather(*[arena.sandbox.run(f"print({n})") for n in range(60)])
    done = True
    await watching
    assert [r.stdout for r in results] == [f"{n}\n" for n in range(60)]
    assert worst < 0.5


async def test_a_worker_that_dies_is_replaced_and_its_run_repeated(pool: LocalSandbox) -> None:
    slow = asyncio.create_task(pool.run("import time\ntime.sleep(3)\nprint('late')", limits=PATIENT))
    other = asyncio.create_task(pool.run("import time\ntime.sleep(0.3)\nprint('right')", limits=PATIENT))
    victim = (await with_programs(pool, 1))[0]
    held = tree.descendants(victim)
    (worker,) = [worker for worker in pool._alive if worker.pid == victim]
    os.kill(victim, signal.SIGKILL)
    worker._child.wait()
    assert [((await run).stdout, (await run).reason.value) for run in (slow, other)] == [
        ("late\n", "ok"),
        ("right\n", "ok"),
    ]
    again = await asyncio.gather(*[pool.run("print(1)") for _ in range(4)])
    assert [r.stdout for r in again] == ["1\n"] * 4
    assert pool.restarts >= 1
    if pool.level == "namespaces":
        wait_until_dead(held)


async def test_a_run_that_the_sandbox_fails_is_repeated_once_by_a_fresh_worker_and_then_wrong(
    pool: LocalSandbox, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run, asked = SandboxWorker.run, []

    def lost(worker: SandboxWorker, job: Job) -> Iterator[RunResult]:
        results = run(worker, job)
        yield next(results)
        if "LOST" not in job.program or ("ONCE" in job.program and job.again):
            yield from results
            return
        asked.append((worker.pid, list(job.tests)))
        raise WorkerError("it has gone")

    await pool.run("print(1)")  # this worker waits for the next job
    monkeypatch.setattr(SandboxWorker, "run", lost)
    once = await pool.run_tests("print(input())  # LOST ONCE", ["1", "2", "3"])
    assert [(result.stdout, result.reason.value) for result in once] == [
        ("1\n", "ok"),
        ("2\n", "ok"),
        ("3\n", "ok"),
    ]
    twice = await pool.run_tests("print(input())  # LOST", ["1", "2", "3"])
    assert [result.reason.value for result in twice] == ["ok", "ok", "sandbox"] and "it has gone" in twice[
        2
    ].message
    assert [tests for _, tests in asked] == [["1", "2", "3"], ["1", "2", "3"], ["2", "3"]]
    assert len({pid for pid, _ in asked}) == 3
    assert (pool.stats()["runs"], pool.stats()["runs/sandbox"]) == (7, 1)
    assert "1 runs failed twice and count as wrong, the last: it has gone" in caplog.text


async def test_a_run_that_cannot_be_confined_is_repeated_by_a_fresh_worker(
    pool: LocalSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, pids = SandboxWorker.run, []

    def unconfined(worker: SandboxWorker, job: Job) -> Iterator[RunResult]:
        pids.append(worker.pid)
        for result in run(worker, job):
            yield result if job.again else RunResult(Reason.SANDBOX, message="OSError: no filter")

    await pool.run("print(1)")
    monkeypatch.setattr(SandboxWorker, "run", unconfined)
    assert (await pool.run("print(1)")).stdout == "1\n"
    assert len(set(pids)) == 2


async def test_a_byte_order_mark_is_skipped_once_at_the_start_of_a_program(arena: Arena) -> None:
    assert (await arena.sandbox.run("\ufeffprint(1)")).stdout == "1\n"
    assert (await arena.sandbox.compile("\ufeff# \ufeff\nx = 1")).ok
    assert (await arena.sandbox.run_tests("\ufeffdef f(x):\n    return x", [FunctionCall("f", [2])]))[
        0
    ].returned() == 2
    assert (await arena.sandbox.run("\ufeff\ufeffprint(1)")).reason == "compile"


async def test_an_alarm_that_comes_late_ends_no_other_run(arena: Arena) -> None:
    program = "import os, time\ntime.sleep(0.5)\nos.fork()\nkeep = os.urandom(90 << 20)\ntime.sleep(60)"
    sandbox = LocalSandbox(SandboxConfig(min_level="rlimits", workers=1, limits=LIMITS), [arena.level])
    try:
        greedy = asyncio.create_task(sandbox.run(program, limits=PATIENT))
        await with_programs(sandbox, 1)
        init = tree.descendants(sandbox.pids[0])[1]
        os.kill(init, signal.SIGSTOP)  # the watcher goes on and raises one alarm after the other
        await asyncio.sleep(1.5)
        os.kill(init, signal.SIGCONT)
        assert (await greedy).reason == "memory"
        after = [await sandbox.run("import time\ntime.sleep(0.2)", limits=PATIENT) for _ in range(3)]
        assert [run.reason.value for run in after] == ["ok"] * 3
    finally:
        sandbox.close()


async def test_an_abandoned_run_ends_and_frees_its_worker(pool: LocalSandbox) -> None:
    runs = [
        asyncio.create_task(pool.run("import time\ntime.sleep(60)", limits=SandboxLimitsConfig(wall_s=90)))
        for _ in range(2)
    ]
    await with_programs(pool, 2)
    held = [pid for worker in pool.pids for pid in tree.descendants(worker)]
    began = time.monotonic()
    for run in runs:
        run.cancel()
    assert (await pool.run("print(1)")).stdout == "1\n"
    assert time.monotonic() - began < 55, "not when the runs end"
    wait_until_dead(held)


async def test_closing_ends_all_processes_and_folders() -> None:
    sandbox = LocalSandbox(SETTINGS)
    await asyncio.gather(*[sandbox.run("print(1)") for _ in range(4)])
    processes = [*sandbox.pids, *(pid for worker in sandbox.pids for pid in tree.descendants(worker))]
    folders = [worker.scratch for worker in sandbox._alive]
    sandbox.close()
    wait_until_dead(processes)
    assert [folder for folder in folders if os.path.exists(folder)] == []
    with pytest.raises(SandboxError, match="closed"):
        await sandbox.run("print(1)")


def test_a_killed_trainer_leaves_nothing_behind() -> None:
    code = (
        "import asyncio, os, sys\nfrom agent_system.sandbox import *\n"
        "s = make_sandbox(SandboxConfig(min_level='rlimits', workers=1))\n"
        "asyncio.run(s.run('print(1)'))\nprint(*s.pids, *[w.scratch for w in s._alive], flush=True)\n"
        "asyncio.run(s.run('import time\\ntime.sleep(60)', limits=SandboxLimitsConfig(wall_s=90)))"
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=env
    ) as trainer:
        assert trainer.stdout is not None
        pid, folder = trainer.stdout.readline().split()
        worker = int(pid)
        wait_until(lambda: len(tree.descendants(worker)) >= 3)
        held = tree.descendants(worker)
        trainer.kill()
    wait_until_dead([worker, *held])
    assert not os.path.exists(folder)


def test_several_threads_and_loops_share_one_sandbox(pool: LocalSandbox) -> None:
    got: list[str] = []
    threads = [
        threading.Thread(target=lambda n=n: got.append(asyncio.run(pool.run(f"print({n})")).stdout))
        for n in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(got) == [f"{n}\n" for n in range(6)]
    assert pool.stats()["runs"] == pool.stats()["runs/ok"] == 6


async def test_packages_can_be_imported_where_they_are_listed() -> None:
    for level in offered():
        sandbox = LocalSandbox(
            SandboxConfig(min_level="rlimits", workers=1, packages=["mpmath", "six"]), [level]
        )
        try:
            result = await sandbox.run(
                "import mpmath, six\nfrom mpmath.calculus import odes\nprint(mpmath.sqrt(16), "
                "six.PY3)\nimport sympy"
            )
            assert (result.stdout, "No module named 'sympy'" in result.stderr) == ("4.0 True\n", True)
        finally:
            sandbox.close()


def test_packages_that_are_missing_are_named() -> None:
    with pytest.raises(SandboxError, match="'no_such_package', which is no installed package"):
        find_packages(["no_such_package"])
    with pytest.raises(SandboxError, match=r"ImportError: .*mpmath"):
        LocalSandbox(SandboxConfig(min_level="rlimits", packages=["sympy"]))


def test_every_level_below_the_least_is_refused() -> None:
    assert offered(), "no level works on this machine"
    least = LEVELS[-1]
    refusal = f"sandbox.min_level={least}, but this machine offers 'rlimits' only"
    with pytest.raises(SandboxError, match=refusal):
        LocalSandbox(SandboxConfig(min_level=least), ["rlimits"])
    message = level_error(
        "seccomp",
        "namespaces",
        {"namespaces": "OSError: clone: not permitted", "landlock": "OSError: no Landlock"},
    )
    for part in (
        "sandbox.min_level=namespaces",
        "'seccomp' only",
        "clone: not permitted",
        "user.max_user_namespaces",
        "sandbox.url",
    ):
        assert part in message


@pytest.mark.parametrize("does", ["open", "chmod truncate"])
def test_a_level_that_does_not_hold_what_it_promises_is_not_taken(
    does: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from agent_system.sandbox import local

    monkeypatch.setattr(local, "PROBE_PROGRAM", f"print({does!r}, 42)")
    best, *_ = levels = offered()
    expected = f"{best}: a program can do this to files of the trainer: {', '.join(does.split())}"
    with pytest.raises(
        SandboxError, match=expected if rank(best) > rank("seccomp") else "min_level=landlock"
    ) as error:
        make_sandbox(SandboxConfig(workers=1))
    left = "seccomp" if does == "open" and "seccomp" in levels else "rlimits"
    assert f"this machine offers {left!r} only" in str(error.value)


def test_below_landlock_a_sandbox_says_whose_files_are_open(monkeypatch: pytest.MonkeyPatch) -> None:
    sandbox = LocalSandbox(SandboxConfig(min_level="rlimits", workers=1), ["rlimits"])
    try:
        for uid, said in ((0, False), (1000, True)):
            monkeypatch.setattr(os, "geteuid", lambda uid=uid: uid)
            assert ("they can read and write all files of this user" in sandbox.describe()) == said
    finally:
        sandbox.close()


def test_a_machine_without_the_level_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    from agent_system.sandbox import local

    def worker(level: str, *rest: object) -> object:
        if rank(level) > rank("rlimits"):
            raise SandboxError(f"OSError: no {level} here")
        return start(level, *rest)

    start = local.SandboxWorker
    monkeypatch.setattr(local, "SandboxWorker", worker)
    with pytest.raises(
        SandboxError, match="min_level=landlock, but this machine offers 'rlimits' only"
    ) as error:
        make_sandbox(SandboxConfig(workers=1))
    for level in ("namespaces", "landlock", "seccomp"):
        assert f"no {level} here" in str(error.value)


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"min_level": "namespace"}, "did you mean 'namespaces'"),
        ({"min_level": "none"}, "expected one of rlimits, seccomp, landlock, namespaces"),
        ({"workers": -1}, "sandbox.workers"),
        ({"url": "localhost:8080"}, "sandbox.url='localhost:8080'"),
    ],
)
def test_wrong_settings_are_refused(changed: dict[str, object], says: str) -> None:
    with pytest.raises(ConfigError) as error:
        make_sandbox(SandboxConfig(**changed))
    assert says in str(error.value)


@pytest.mark.parametrize(
    "changed",
    [{"cpu_s": 0}, {"wall_s": float("inf")}, {"memory_mb": 1.5}, {"processes": True}, {"output_kb": -1}],
)
async def test_wrong_limits_are_refused(changed: dict[str, object], pool: LocalSandbox) -> None:
    limits = SandboxLimitsConfig(**changed)
    with pytest.raises(ConfigError, match=f"sandbox.limits.{next(iter(changed))}="):
        make_sandbox(SandboxConfig(limits=limits))
    for run in (pool.run, pool.compile):
        with pytest.raises(ConfigError, match=f"sandbox.limits.{next(iter(changed))}="):
            await run("pass", limits=limits)


async def test_the_shared_sandbox_is_one() -> None:
    try:
        configured = configure(SETTINGS)
        assert shared_sandbox() is configured
        assert (await shared_sandbox().run("print(1)")).ok
        assert shared_failures() == 0
        configured.counts["sandbox"] += 2
        assert shared_failures() == 2
        close_shared()
        assert shared_failures() is None
        assert shared_sandbox() is not configured
    finally:
        close_shared()
