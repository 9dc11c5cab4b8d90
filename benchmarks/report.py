"""Time, size and memory of a report, and of its page in a headless Chromium.

    python benchmarks/report.py [--math RUN] [--run RUN] [--steps 60] [--rounds 3] ...

Two runs: that of `--run`, else one of random words, which share nothing: 60 steps of 32 tasks x 8
episodes of 4 calls with 2,000 characters of prompt and reply; and that of `--math`, else one as
`bash examples/run_math.sh trainer.log_tokens=16` leaves it, with replies of the demonstrators. The
report is built by the command, in a process of its own.

The last line is one JSON object: `build_s` and `rss_mb`, CPU seconds and peak memory of the
command, which uses one core; `mb`, size of the page; `first_paint_ms`, from the navigation to the
painted overview; `filter_ms`, from the overview until the list of episodes, filtered by a text for
the first time, is laid out in the document; `open_ms`, until an opened episode is (painting waits
for the next frame of the screen, up to 17 ms, whatever the page does), both of a page that has come
to rest; `heap_mb`, heap of the page after that; each the median of the rounds, and `spread` their
lowest and highest. Those of the page are null without Chromium (`apt-get install chromium`).
`record_share` is the share of the seconds of training steps in which `credit/` is written, in a
short run with a tiny model. `math_*` are those of the other run.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.shared.browser import chromium, find_chromium
from benchmarks.shared.math_run import write_math_run
from benchmarks.shared.report_run import write_run
from benchmarks.shared.short import parse_args

ROOT = Path(__file__).resolve().parents[1]
MB = 1_000_000
IN_THE_PAGE = ("first_paint_ms", "filter_ms", "open_ms", "heap_mb")
NAMES = ("build_s", "mb", *IN_THE_PAGE, "rss_mb")
# Is in some tasks, answers and actions of both runs.
FILTER = "17"
TRAIN = """
import json, sys, time
import verl.trainer.ppo.credit.record as record
from agent_system.launch.train import run
from verl.trainer.plan.command_line import compose_config
seconds = []
write = record.write_credit
def timed(*args):
    start = time.perf_counter()
    columns = write(*args)
    seconds.append(time.perf_counter() - start)
    return columns
record.write_credit = timed
run(compose_config(sys.argv[1:]))
print(json.dumps(seconds))
"""


def build(run: Path, out: Path, max_mb: float) -> dict[str, float]:
    """Return the CPU seconds and the peak memory of the command, and the size of its page."""
    command = [sys.executable, "-m", "verl.report.cli", str(run), "--out", str(out), "--max-mb", str(max_mb)]
    process = subprocess.Popen(command, env=os.environ | {"PYTHONPATH": str(ROOT)}, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return {
        "build_s": usage.ru_utime + usage.ru_stime,
        "mb": out.stat().st_size / MB,
        "rss_mb": usage.ru_maxrss * 1024 / MB,
    }


def look(page: Path, episode: int) -> dict[str, float]:
    """Return the milliseconds until the page is painted, filtered and an episode is open, and its
    heap.
    """
    with chromium() as browser:
        browser.open(page)
        browser.rest()
        return {
            "first_paint_ms": browser.first_paint_ms(),
            "filter_ms": browser.filter_ms(FILTER),
            "open_ms": browser.open_ms(episode),
            "heap_mb": browser.heap_bytes() / MB,
        }


def record_share(folder: Path, steps: int) -> float:
    """Return the share of the seconds of training steps in which `credit/` is written."""
    from examples.embedded.math.tasks import generate_split, to_row
    from verl.models.tiny import make_tiny_model

    problems, _ = generate_split(16 * steps, 8, seed=0)
    rows = [to_row(problem, number, "train") for number, problem in enumerate(problems)]
    (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    make_tiny_model(folder / "model", corpus=[problem.question for problem in problems])
    keys = {
        "agent.orchestra_type": "math",
        "agent.agent_ids": "[Solver Agent,Verifier Agent]",
        "agent.orchestra.math.prompt_style": "short",
        "env.env_name": "math",
        "env.rollout.n": 8,
        "actor_rollout_ref.model.path": folder / "model",
        "data.train_files": folder / "train.jsonl",
        "data.val_files": "null",
        "data.train_batch_size": 16,
        "data.max_prompt_length": 512,
        "data.max_response_length": 32,
        "trainer.controller": "local",
        "trainer.device": "cpu",
        "trainer.checks": "[memory]",
        "trainer.logger": "[jsonl]",
        "trainer.total_training_steps": steps,
        "trainer.default_local_dir": folder / "run",
    }
    overrides = [f"{key}={value}" for key, value in keys.items()]
    ended = subprocess.run(
        [sys.executable, "-c", TRAIN, *overrides],
        env=os.environ | {"PYTHONPATH": str(ROOT)}, check=True, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    lines = (folder / "run" / "metrics.jsonl").read_text().splitlines()
    total = sum(json.loads(line).get("timing_s/step", 0.0) for line in lines)
    return sum(json.loads(ended.stdout.splitlines()[-1])) / total


def middle_episode(run: Path) -> int:
    """Return the number of an episode of the first training step, whose texts are in the page."""
    first = len((run / "trajectories" / "train_000001.jsonl").read_bytes().splitlines())
    return first // 2


def measure(run: Path, folder: Path, max_mb: float) -> dict[str, float | None]:
    """Return the figures of a run's report; those of its page are None without Chromium."""
    page = folder / "report.html"
    figures: dict[str, float | None] = dict.fromkeys(NAMES) | build(run, page, max_mb)
    return figures | (look(page, middle_episode(run)) if find_chromium() else {})


def summary(rounds: Sequence[Mapping[str, float | None]], prefix: str) -> dict[str, Any]:
    """Return the median of each figure, and under `spread` its lowest and highest."""
    medians: dict[str, Any] = {}
    spread = {}
    for name in NAMES:
        numbers = [number for row in rounds if (number := row[name]) is not None]
        medians[prefix + name] = round(statistics.median(numbers), 2) if numbers else None
        if numbers:
            spread[prefix + name] = [round(min(numbers), 2), round(max(numbers), 2)]
    return medians | {"spread": spread}


def main() -> None:
    """Print the figures of every round, and their medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--run", type=Path, help="folder of a run; default: one of random words")
    parser.add_argument("--math", type=Path, help="folder of a run of mathematics; default: a simulated one")
    parser.add_argument("--steps", type=int, default=60, help="of the runs that are written")
    parser.add_argument("--tasks", type=int, default=32, help="of a step")
    parser.add_argument("--max-mb", type=float, default=8.0, help="size of the page")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--record-steps", type=int, default=4, help="of the training run; 0: none")
    args = parse_args(parser, steps=15, rounds=1, record_steps=2)
    rounds: dict[str, list[dict[str, float | None]]] = {"": [], "math_": []}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        runs = {
            "": args.run or write_run(folder / "random", steps=args.steps, tasks=args.tasks),
            "math_": args.math or write_math_run(folder / "math", args.steps),
        }
        for _ in range(args.rounds):
            for prefix, run in runs.items():
                rounds[prefix].append(measure(run, folder, args.max_mb))
                sys.stdout.write(json.dumps({"run": run.name, **rounds[prefix][-1]}) + "\n")
        share = record_share(folder, args.record_steps) if args.record_steps else None
    result = summary(rounds[""], "") | {"record_share": share and round(share, 5)}
    spread = result.pop("spread")
    result |= summary(rounds["math_"], "math_")
    sys.stdout.write(json.dumps(result | {"spread": spread | result["spread"]}) + "\n")


if __name__ == "__main__":
    main()
