"""Two colleagues with equal prompts who must reply differently: one policy, an adapter per agent and a model
per agent, and named roles.

    python recipe/roles/measure.py --seeds 0 1 2

trains the two colleagues of `team.py` with each level of `config.yaml` and writes `results.json` (rows
`{"level", "seed", "before", "after", "covered_after", "right_after", ...}`), `curves.json` and `curves.svg`
into this folder. Only the level differs: tasks, seeds and warm start are the same. Rows of an earlier call
are kept unless they are measured again. DEMOS is the number of demonstrations of the warm start; a few
hundred give a quick run that learns little.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import yaml

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from recipe.runs import Curve, Row, measure_grid, success_curve, success_row, train_embedded

HERE = Path(__file__).parent
PREPARE = ("recipe.roles.prepare", "--world", "colleagues")
LABELS = {
    "L1": ("tab:purple", "L1: one policy"),
    "L1_named": ("tab:pink", "L1, roles named in the prompts"),
    "L2": ("tab:orange", "L2: an adapter per agent"),
    "L3": ("tab:blue", "L3: a model per agent"),
}
SHARES = {"covered": "covered", "right": "right", "a_adds": "a/adds", "b_adds": "b/adds"}


def measure(level: str, seed: int, more: list[str]) -> tuple[Row, Curve]:
    """Train one level; return its row and its curve, [step, success] of every validation."""
    config = yaml.safe_load((HERE / "config.yaml").read_text())
    settings = config["common"] | config["levels"][level]
    lines = train_embedded(
        f"roles_{level}_seed{seed}", seed, settings, os.environ.get("DEMOS") or None, more, PREPARE
    )
    return {"level": level, "seed": seed} | success_row(lines, SHARES), success_curve(lines)


if __name__ == "__main__":
    measure_grid(__doc__, HERE, "level", LABELS, measure)
