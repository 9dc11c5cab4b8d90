"""A document that one agent's context does not hold: one agent alone, and a team that delegates its chapters.

    python recipe/delegation/measure.py --seeds 0 1 2

trains both teams of `config.yaml` and writes `results.json` (rows
`{"team", "seed", "before", "after", ...}`), `curves.json` and `curves.svg` into this folder. Tasks,
seeds, warm start and the longest prompt of an agent are the same. Rows of an earlier call are kept
unless they are measured again. DEMOS is the number of demonstrations of the warm start.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import yaml

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from recipe.runs import Curve, Row, measure_grid, success_curve, success_row, train_embedded

HERE = Path(__file__).parent
PREPARE = ("recipe.delegation.prepare", "--world", "library")
LABELS = {
    "alone": ("tab:red", "one agent alone"),
    "delegation": ("tab:blue", "delegation to children"),
}
SHARES = {
    "alone": {},
    "delegation": {name.replace("/", "_"): name for name in ("plan/whole", "finder/right", "counter/right")},
}


def measure(team: str, seed: int, more: list[str]) -> tuple[Row, Curve]:
    """Train one team; return its row and its curve, [step, success] of every validation."""
    config = yaml.safe_load((HERE / "config.yaml").read_text())
    settings = config["common"] | config["teams"][team]
    lines = train_embedded(
        f"delegation_{team}_seed{seed}", seed, settings, os.environ.get("DEMOS") or None, more, PREPARE
    )
    return {"team": team, "seed": seed} | success_row(lines, SHARES[team]), success_curve(lines)


if __name__ == "__main__":
    measure_grid(__doc__, HERE, "team", LABELS, measure)
