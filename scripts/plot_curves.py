"""Draw docs/curves.svg, the success of teams on held-out tasks during training, from the recorded
`recipe/*/curves.json`.

python scripts/plot_curves.py [--out FILE]
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# Title of a panel, its recipe, the prefix of its runs' names (a name ends with the seed), and the unit of the
# x axis.
PANELS = (
    ("Mathematics", "specialization", "L2/", "steps"),
    ("Plan-Path", "at_grpo", "plan_path/script/", "million tokens"),
    ("Sudoku", "at_grpo", "sudoku/script/", "million tokens"),
    ("Sokoban", "at_grpo", "sokoban/script/", "million tokens"),
    ("Code", "code", "", "steps"),
    ("Search", "search", "", "steps"),
)


def runs(recipe: str, start: str) -> dict[str, list[list[float]]]:
    """Return the points (x, success in [0, 1]) by seed of a recipe's runs whose names are `start` and
    a seed.
    """
    curves = json.loads((ROOT / "recipe" / recipe / "curves.json").read_text())
    return {
        name.removeprefix(start): points for name, points in sorted(curves.items()) if name.startswith(start)
    }


def plot(path: Path) -> None:
    """Write one panel per workflow, with one line per seed."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams.update({"svg.hashsalt": "curves", "svg.fonttype": "none", "font.size": 9})
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, len(PANELS), figsize=(13, 2.5), layout="constrained", sharey=True)
    for panel, (title, recipe, start, unit) in zip(panels, PANELS, strict=True):
        scale = 1e6 if unit == "million tokens" else 1
        for seed, points in runs(recipe, start).items():
            panel.plot(
                [x / scale for x, _ in points],
                [100 * y for _, y in points],
                linewidth=1.2,
                label=f"seed {seed}",
            )
        panel.set(title=title, xlabel=unit, ylim=(0, 102))
        panel.grid(alpha=0.3)
    panels[0].set_ylabel("success, % of held-out tasks")
    panels[0].legend(loc="lower right", frameon=False)
    figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "curves.svg")
    plot(parser.parse_args().out)
