"""How often the roles of Plan-Path look before they move: before training, after it, and with swapped roles.

    python recipe/at_grpo/measure.py --tasks plan_path --variants script --seeds 0 1 2
    python recipe/at_grpo/replies.py --seeds 0 1 2

reads the trajectories of the runs of the first command and writes `replies.json` (rows
`{"seed", "episodes", "success", "tool", "executor"}`) into this folder. `tool` and `executor` are the shares
of a role's replies that name cells before the moves; the others have moves only, or "Fine." before them.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from recipe.runs import ROOT

HERE = Path(__file__).parent


def careful(reply: str) -> bool:
    """Return whether a reply names cells before its moves."""
    return reply.partition("<moves>")[0].strip() not in ("", "Fine.")


def shares(path: Path) -> dict[str, float]:
    """Return success and the shares of careful replies in the trajectories of one validation."""
    episodes: list[dict[str, Any]] = [json.loads(line) for line in path.read_text().splitlines()]
    found = {"success": sum(episode["info"]["success"] for episode in episodes) / len(episodes)}
    for role in ("tool", "executor"):
        replies = [
            call["reply"]
            for episode in episodes
            for call in episode["calls"]
            if call["agent_id"] == f"{role.title()} Agent"
        ]
        found[role] = sum(map(careful, replies)) / len(replies)
    return {name: round(value, 3) for name, value in found.items()}


def rows_of(run_dir: Path, seed: int) -> list[dict[str, Any]]:
    """Return the rows of one run: of its first and last validation, and of that with swapped roles."""
    validations, swapped = (
        sorted(run_dir.glob(f"{where}trajectories/val_*.jsonl")) for where in ("", "swapped/*/")
    )
    if len(validations) < 2 or len(swapped) != 1:
        command = f"python recipe/at_grpo/measure.py --tasks plan_path --variants script --seeds {seed}"
        sys.exit(f"{run_dir} has no finished run with trajectories, expected the one of: {command}")
    found = {"before": validations[0], "after": validations[-1], "swapped": swapped[0]}
    return [{"seed": seed, "episodes": name} | shares(path) for name, path in found.items()]


def main() -> None:
    """Count the replies of every seed's run."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--runs", type=Path, default=ROOT / "outputs" / "verl-mas", help="folder of the runs")
    parser.add_argument("--out", type=Path, default=HERE, help="folder of replies.json")
    args = parser.parse_args()
    rows = [
        row
        for seed in args.seeds
        for row in rows_of(args.runs / f"at_grpo_plan_path_script_seed{seed}", seed)
    ]
    for row in rows:
        sys.stdout.write(f"{json.dumps(row)}\n")
    (args.out / "replies.json").write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
