import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from agent_system.workflows.math.world import grader_pool
from agent_system.workflows.math.world.grader_pool import GraderError, GraderPool, Verdict


def running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def until_gone(pids: list[int], seconds: float = 60.0) -> bool:
    end = time.monotonic() + seconds
    while any(map(running, pids)) and time.monotonic() < end:
        time.sleep(0.02)
    return not any(map(running, pids))


@pytest.mark.parametrize(
    ("answer", "truth"), [("99999999!", "5"), ("2^{10^{10}}", "5"), ("5", r"\sum_{i=1}^{10^9} i^{i}")]
)
def test_hang_is_cut_off_counted_and_the_grader_replaced(answer, truth):
    pool = GraderPool(workers=1, timeout_s=0.5)
    try:
        assert pool.compare_now("2+2", "4") is Verdict.EQUAL
        first = pool.pids
        assert pool.compare_now(answer, truth) is Verdict.TIMEOUT
        assert pool.timeouts == 1
        assert pool.compare_now("2+3", "5") is Verdict.EQUAL
        assert len(pool.pids) == 1 and pool.pids != first and until_gone(first)
    finally:
        pool.close()


async def test_event_loop_runs_on_while_answers_hang():
    pool = GraderPool(workers=1, timeout_s=0.5)
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0.01)
            ticks += 1

    ticking = asyncio.create_task(tick())
    assert await pool.compare("99999999!", "5") is Verdict.TIMEOUT
    ticking.cancel()
    pool.close()
    assert ticks > 10


def test_nothing_starts_before_an_answer_needs_it_and_nothing_is_left():
    pool = GraderPool(workers=2)
    assert pool.pids == []
    pool.compare_now("3+4", "7")
    pids = pool.pids
    assert len(pids) == 1
    pool.close()
    assert until_gone(pids)
    assert pool.compare_now("3+5", "8") is Verdict.EQUAL
    pool.close()


def test_pool_serves_one_event_loop_after_another(pool):
    for number in (3, 4):
        assert asyncio.run(pool.compare(f"{number}+1", str(number + 1))) is Verdict.EQUAL


@pytest.mark.parametrize("hanging", [False, True])
def test_graders_end_when_their_parent_is_killed(hanging):
    code = (
        "import sys, threading, time\n"
        "from agent_system.workflows.math.world.grader_pool import GraderPool\n"
        "pool = GraderPool(workers=1, timeout_s=1.0)\n"
        "pool.compare_now('1+1', '2')\n"
        + (
            "threading.Thread(target=pool.compare_now, args=('99999999!', '5'), daemon=True).start(); "
            "time.sleep(0.2)\n"
            if hanging
            else ""
        )
        + "print(pool.pids[0], flush=True)\n"
        "time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert running(pid)
        parent.send_signal(signal.SIGKILL)
    assert until_gone([pid])


def test_answers_that_hang_do_not_keep_the_process_from_ending():
    code = (
        "import asyncio\n"
        "from agent_system.workflows.math.world.grader_pool import GraderPool\n"
        "async def main():\n"
        "    pool = GraderPool(workers=1, timeout_s=5.0)\n"
        "    await pool.compare('1+1', '2')\n"
        "    print(pool.pids[0], flush=True)\n"
        "    waiting = [asyncio.create_task(pool.compare(f'9999999{i}!', '5')) for i in range(8)]\n"
        "    await asyncio.wait(waiting, timeout=0.2)\n"
        "asyncio.run(main())\n"
    )
    start = time.monotonic()
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=240, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert time.monotonic() - start < 30.0
    assert until_gone([int(ended.stdout)])


def test_grader_that_dies_by_itself_is_an_error_and_not_remembered(pool):
    pool.compare_now("5+5", "10")
    os.kill(pool.pids[0], signal.SIGKILL)
    assert pool.compare_now("5+6", "11") in (Verdict.EQUAL, Verdict.ERROR)
    assert pool.compare_now("5+6", "11") is Verdict.EQUAL


def test_missing_grader_says_what_to_install(monkeypatch, tmp_path):
    broken = tmp_path / "broken.py"
    broken.write_text("import no_such_module")
    monkeypatch.setattr(grader_pool, "SCRIPT", broken)
    pool = GraderPool(workers=1)
    for _ in range(2):
        with pytest.raises(GraderError, match="pip install latex2sympy2_extended"):
            pool.compare_now("1+1", "2")
    pool.close()


def test_grader_does_not_see_the_trainers_secrets(monkeypatch, tmp_path):
    monkeypatch.setenv("WANDB_API_KEY", "secret")
    spy = tmp_path / "spy.py"
    spy.write_text(
        "import os, sys\nprint('{\"ready\": true}', flush=True)\nopen(sys.argv[0] + '.env', "
        "'w').write(str(dict(os.environ)))\n"
        "sys.stdin.read()"
    )
    monkeypatch.setattr(grader_pool, "SCRIPT", spy)
    monkeypatch.setattr(grader_pool, "WALL_PER_CPU_SECOND", 0.2)
    pool = GraderPool(workers=1)
    assert pool.compare_now("1+1", "2") is Verdict.TIMEOUT
    pool.close()
    assert "secret" not in (tmp_path / "spy.py.env").read_text()
