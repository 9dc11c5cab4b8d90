"""A task whose roles need different skills: one policy, one adapter per agent with two ranks, and one model
per agent.

    python recipe/skills/measure.py --seeds 0 1 2

trains the Coder and the Filer of `team.py` with each level of `config.yaml` and writes `results.json` (rows
`{"level", "seed", "before", "after", "coder_right_after", ...}`), `curves.json` and `curves.svg` into this
folder. Only the level and its learning rate differ: tasks, seeds and warm start are the same. Rows of an
earlier call are kept unless they are measured again. DEMOS is the number of demonstrations of the warm start.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import yaml

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from recipe.runs import Curve, Row, measure_grid, success_curve, success_row, train_embedded

HERE = Path(__file__).parent
PREPARE = ("recipe.skills.prepare", "--world", "depot")
LABELS = {
    "L1": ("tab:purple", "L1: one policy"),
    "L2_rank1": ("tab:red", "L2: an adapter of rank 1 per agent"),
    "L2_rank16": ("tab:orange", "L2: an adapter of rank 16 per agent"),
    "L3": ("tab:blue", "L3: a model per agent"),
}
SHARES = {"coder_right": "coder/right", "filer_right": "filer/right", "coder_shelf": "coder/shelf"}


def measure(level: str, seed: int, more: list[str]) -> tuple[Row, Curve]:
    """Train one level; return its row and its curve, [step, success] of every validation."""
    config = yaml.safe_load((HERE / "config.yaml").read_text())
    settings = config["common"] | config["levels"][level]
    lines = train_embedded(
        f"skills_{level}_seed{seed}", seed, settings, os.environ.get("DEMOS") or None, more, PREPARE
    )
    return {"level": level, "seed": seed} | success_row(lines, SHARES), success_curve(lines)


if __name__ == "__main__":
    measure_grid(__doc__, HERE, "level", LABELS, measure)
