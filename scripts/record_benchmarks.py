"""Run benchmarks at their default sizes, one after the other, and record their last lines in
benchmarks/results.json.

    python scripts/record_benchmarks.py [advantage controller ...] [--wait 300]

Each starts when the machine is idle, or after `--wait` seconds. A row is the last line of the benchmark with
`commit`, `date`, `load` (load average of the minute before) and `seconds`; rows of other benchmarks are kept.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from recipe.load import settled_load
from recipe.runs import ROOT

RESULTS = ROOT / "benchmarks" / "results.json"


def measure(name: str, patience_s: float) -> dict[str, Any]:
    """Return the last line of one benchmark with its origin. Raises CalledProcessError when the benchmark
    fails.
    """
    commit = subprocess.check_output(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, text=True).strip()
    origin = {
        "commit": commit,
        "date": time.strftime("%Y-%m-%d"),
        "load": settled_load(patience_s=patience_s),
    }
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    start = time.monotonic()
    command = [sys.executable, str(ROOT / "benchmarks" / f"{name}.py")]
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        last = ""
        for last in process.stdout:
            sys.stdout.write(last)
            sys.stdout.flush()
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return json.loads(last) | origin | {"seconds": round(time.monotonic() - start)}


def main() -> None:
    """Run the selected benchmarks and write the file after each."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    known = sorted(path.stem for path in (ROOT / "benchmarks").glob("*.py"))
    parser.add_argument("names", nargs="*", default=known, help="default: all")
    parser.add_argument("--wait", type=float, default=300.0, help="seconds to wait for an idle machine")
    args = parser.parse_args()
    unknown = sorted(set(args.names) - set(known))
    if unknown:
        parser.error(f"no benchmark {unknown[0]!r}; expected one of {', '.join(known)}")
    for name in args.names:
        row = measure(name, args.wait)
        rows = json.loads(RESULTS.read_text()) if RESULTS.is_file() else {}
        RESULTS.write_text(json.dumps(dict(sorted((rows | {name: row}).items())), indent=1) + "\n")
        sys.stdout.write(f"{name}: {json.dumps(row)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
