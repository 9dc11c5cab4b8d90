"""Speed of the sandbox: tests per second with warm workers against a fresh `python` for each test, and the
delay of the event loop.

    python benchmarks/sandbox.py [--programs 20] [--tests 20] [--workers 2] [--repeats 5]

Warm: every program is one call of `run_tests`, so its tests share a namespace and a job only, with
`--workers` jobs at a time. The peer starts `python program.py` for every test, with the same number at a
time. Both get the same programs and inputs alternately, and the outputs are compared. `runs` is the same with
one test per program, so that every test needs a job.

Event loop: `--waiting` runs are submitted to the sandbox at once while a coroutine repeatedly sleeps for a
millisecond; the delay is the time by which it wakes too late. The limit is 20 ms for the 99th percentile.

The last line is one JSON object: `speedup` (tests per second, warm / fresh), `speedup_runs` (with one test
per program), `loop_delay_ms_p99` (medians of the repeats), `level`, `tests_per_s`, `fresh_per_s`, and
`spread`, the lowest and highest repeat of each.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from verl.trainer.config.sandbox import SandboxConfig

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from agent_system.sandbox.levels import LEVELS
from agent_system.sandbox.local import LocalSandbox
from benchmarks.shared.short import parse_args

logger = logging.getLogger("sandbox")
PROGRAM = """\
import sys
from collections import Counter

def solve(words):
    counts = Counter(words)
    return " ".join(word for word, _ in sorted(counts.items(), key=lambda item: (-item[1], item[0])))

print({number}, solve(sys.stdin.read().split()))
"""


def tasks(programs: int, tests: int) -> list[tuple[str, list[str]]]:
    """Return programs, each with its inputs."""
    return [
        (PROGRAM.format(number=n), [f"a b{n} a c{t} b{n} d" for t in range(tests)]) for n in range(programs)
    ]


async def warm(sandbox: LocalSandbox, work: Sequence[tuple[str, list[str]]]) -> tuple[float, list[str]]:
    """Return tests per second with warm workers, and all outputs."""
    began = time.perf_counter()
    results = await asyncio.gather(*[sandbox.run_tests(program, inputs) for program, inputs in work])
    seconds = time.perf_counter() - began
    outputs = [result.stdout for run in results for result in run]
    return len(outputs) / seconds, outputs


def fresh(work: Sequence[tuple[str, list[str]]], workers: int) -> tuple[float, list[str]]:
    """Return tests per second with a new interpreter for every test, and all outputs."""
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / f"program_{i}.py" for i in range(len(work))]
        for file, (program, _) in zip(files, work, strict=True):
            file.write_text(program)
        calls = [(file, text) for file, (_, inputs) in zip(files, work, strict=True) for text in inputs]

        def run(call: tuple[Path, str]) -> str:
            done = subprocess.run(
                [sys.executable, str(call[0])],
                input=call[1],
                capture_output=True,
                text=True,
                timeout=60,
                check=True,
            )
            return done.stdout

        began = time.perf_counter()
        with ThreadPoolExecutor(workers) as pool:
            outputs = list(pool.map(run, calls))
        return len(calls) / (time.perf_counter() - began), outputs


async def loop_delay_ms(sandbox: LocalSandbox, waiting: int) -> float:
    """Return the 99th percentile of the delay with which the event loop wakes a coroutine during `waiting`
    runs, in milliseconds.
    """
    runs = asyncio.gather(*[sandbox.run(f"print({i})") for i in range(waiting)])
    delays = []
    while not runs.done():
        began = time.perf_counter()
        await asyncio.sleep(0.001)
        delays.append(1000 * (time.perf_counter() - began) - 1)
    assert [result.stdout for result in await runs] == [f"{i}\n" for i in range(waiting)]
    return statistics.quantiles(delays, n=100)[98]


async def measure(args: argparse.Namespace, sandbox: LocalSandbox) -> dict[str, list[float]]:
    """Return all numbers by name, one per repeat."""
    found: dict[str, list[float]] = {}
    several, single = tasks(args.programs, args.tests), tasks(args.programs * 4, 1)
    part = several[: max(1, args.programs // 2)]
    for _ in range(args.repeats):
        tests_per_s, outputs = await warm(sandbox, several)
        runs_per_s, _ = await warm(sandbox, single)
        fresh_per_s, theirs = await asyncio.to_thread(fresh, part, args.workers)
        assert outputs[: len(theirs)] == theirs
        numbers = {
            "speedup": tests_per_s / fresh_per_s,
            "speedup_runs": runs_per_s / fresh_per_s,
            "loop_delay_ms_p99": await loop_delay_ms(sandbox, args.waiting),
            "tests_per_s": tests_per_s,
            "fresh_per_s": fresh_per_s,
        }
        for name, value in numbers.items():
            found.setdefault(name, []).append(value)
    return found


def main() -> None:
    """Measure and write one line per number, then all of them as JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--programs", type=int, default=20)
    parser.add_argument("--tests", type=int, default=20, help="tests per program")
    parser.add_argument("--waiting", type=int, default=500, help="runs in the measurement of the event loop")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--level", default="auto")
    parser.add_argument("--repeats", type=int, default=5)
    args = parse_args(parser, repeats=2)
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    levels = LEVELS if args.level == "auto" else [args.level]
    sandbox = LocalSandbox(SandboxConfig(min_level="rlimits", workers=args.workers), levels)
    try:
        found = asyncio.run(measure(args, sandbox))
    finally:
        sandbox.close()
    for name, values in found.items():
        logger.info("%s: median %.1f [%.1f, %.1f]", name, statistics.median(values), min(values), max(values))
    result = {name: round(statistics.median(values), 2) for name, values in found.items()}
    spread = {name: [round(min(values), 2), round(max(values), 2)] for name, values in found.items()}
    logger.info(
        json.dumps(result | {"level": sandbox.level, "spread": spread, "load": round(os.getloadavg()[0], 1)})
    )


if __name__ == "__main__":
    main()
