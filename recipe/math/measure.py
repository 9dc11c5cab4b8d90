"""Measure `bash examples/run_math.sh` as a new user runs it: in an empty clone, one seed after the other.

    python recipe/math/measure.py --seeds 0 1 2

writes `results.json` into this folder, a list of `{"seed", "before", "after", "rl_seconds", "total_seconds",
"peak_gib", ...}`: team accuracy (avg@n over held-out tasks) before and after training, the seconds of all
training steps with their checkpoints, the seconds of the whole script, and the peak memory of all its
processes (proportional set size, so that shared pages count once). `commit` is the cloned commit, `load` the
load average of the minute before: a seed starts when the load is near 0, or after waiting five minutes for
it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from recipe.load import settled_load
from recipe.memory import MemoryWatch
from recipe.runs import ROOT, accuracy_key


def run_seed(seed: int, overrides: list[str]) -> dict[str, Any]:
    """Clone the project into an empty folder, run the script, and return the row of its results."""
    with tempfile.TemporaryDirectory(prefix="verl_mas_") as folder:
        clone = Path(folder) / "verl-mas"
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
        commit = subprocess.check_output(
            ["git", "rev-parse", "--short", "HEAD"], cwd=clone, text=True
        ).strip()
        origin = {"commit": commit, "date": time.strftime("%Y-%m-%d"), "load": settled_load()}
        log = Path(folder) / "log"
        start = time.monotonic()
        with open(log, "w") as out:
            env = {
                k: v
                for k, v in os.environ.items()
                if k not in ("VIRTUAL_ENV", "PYTHONPATH", "MODEL_PATH", "DATA")
            }
            command = ["bash", "examples/run_math.sh", *overrides]
            process = subprocess.Popen(
                command, cwd=clone, env=env | {"SEED": str(seed)}, stdout=out, stderr=subprocess.STDOUT
            )
            watch = MemoryWatch(process.pid)
            watch.start()
            status = process.wait()
            watch.stop()
        total = time.monotonic() - start
        if status != 0:
            sys.exit(f"seed {seed}: the script ended with status {status}\n" + log.read_text()[-4000:])
        lines = (
            (clone / "outputs" / "verl-mas" / f"math_seed{seed}" / "metrics.jsonl").read_text().splitlines()
        )
        return (
            summarise(seed, [json.loads(line) for line in lines])
            | {"total_seconds": total, "peak_gib": watch.peak_gib}
            | origin
        )


def summarise(seed: int, lines: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the metrics of the first and the last validation."""
    first, last = lines[0], lines[-1]
    accuracy = accuracy_key(first)
    result = {
        "seed": seed,
        "before": first[accuracy],
        "after": last[accuracy],
        "rl_seconds": sum(
            line.get("timing_s/step", 0.0) + line.get("timing_s/save_checkpoint", 0.0) for line in lines
        ),
        "steps": last["step"],
    }
    for name in ("precision", "recall", "specificity", "accuracy"):
        key = f"val/env/verifier/{name}"
        result[f"verifier_{name}_before"], result[f"verifier_{name}_after"] = first.get(key), last.get(key)
    for loop in (1, 2):
        key = f"val/env/solver/accuracy_loop_{loop}"
        result[f"solver_loop_{loop}_before"], result[f"solver_loop_{loop}_after"] = (
            first.get(key),
            last.get(key),
        )
    return result


def main() -> None:
    """Measure the seeds and write the results after each."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("results.json"))
    parser.add_argument("overrides", nargs="*", help="key=value for the script")
    args = parser.parse_args()
    args.out.parent.mkdir(parents=True, exist_ok=True)
    results = []
    for seed in args.seeds:
        results.append(run_seed(seed, args.overrides))
        sys.stdout.write(json.dumps(results[-1]) + "\n")
        sys.stdout.flush()
        args.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
