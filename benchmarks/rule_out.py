"""How often the early rule-out of a search drops a file that is better by the margin, by simulation.

    python benchmarks/rule_out.py

Files answer each task right or wrong. The incumbent is the best of k files of equal accuracy on the tasks on
which the new file is compared with it, as in a search; k = 1 is an incumbent that was not chosen on them. The
new file is better by the margin. With a chance that is 0 or 0.5, two files have the same answer to a task, as
with replies that both share.

The last line is one JSON object: `independent` and `shared`, for each k the share of the new files that fell.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from agent_system.evolve.race import is_ruled_out
from benchmarks.shared.short import parse_args

ACCURACY = 0.6
MARGIN = 0.01
FILES = (1, 4, 10, 20)


def differences(rng: random.Random, k: int, shared: float, tasks: int) -> list[float]:
    """Return the score of a new file less that of the best of `k` files, for each task."""

    def file(base: list[bool]) -> list[bool]:
        return [b if rng.random() < shared else rng.random() < ACCURACY for b in base]

    base = [rng.random() < ACCURACY for _ in range(tasks)]
    incumbent = max((file(base) for _ in range(k)), key=sum)
    # right in a share of the tasks that are otherwise wrong, so that its accuracy is larger by the margin
    better = [right or rng.random() < MARGIN / (1 - ACCURACY) for right in file(incumbent)]
    return [float(new) - float(old) for new, old in zip(better, incumbent, strict=True)]


def share_out(k: int, shared: float, tasks: int, runs: int) -> float:
    """Return the share of new files that are ruled out within `tasks`."""
    out = sum(is_ruled_out(differences(random.Random(run), k, shared, tasks), MARGIN) for run in range(runs))
    return out / runs


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--runs", type=int, default=10_000, help="simulated files for each number")
    parser.add_argument("--tasks", type=int, default=64, help="tasks on which two files are compared")
    args = parse_args(parser, runs=1_000)
    result = {
        name: {str(k): round(share_out(k, shared, args.tasks, args.runs), 3) for k in FILES}
        for name, shared in (("independent", 0.0), ("shared", 0.5))
    }
    for name, row in result.items():
        sys.stdout.write(f"{name}: " + ", ".join(f"best of {k}: {out:.1%}" for k, out in row.items()) + "\n")
    sys.stdout.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
