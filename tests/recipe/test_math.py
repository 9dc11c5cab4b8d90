"""The committed runs of `bash examples/run_math.sh` keep what the README says of them, and within the limits
of a newcomer's patience.
"""

import json

from tests.house.source import ROOT

FOLDER = ROOT / "recipe" / "math"


def test_the_table_is_that_of_the_committed_runs_and_every_seed_learns_in_time() -> None:
    """25 points, 6 minutes of training, 15 minutes in all, 10 GiB."""
    rows = json.loads((FOLDER / "results.json").read_text())
    readme, front = ((folder / "README.md").read_text(encoding="utf-8") for folder in (FOLDER, ROOT))
    assert [row["seed"] for row in rows] == [0, 1, 2]
    assert len({row["commit"] for row in rows}) == 1
    for row in rows:
        assert row["after"] - row["before"] >= 0.25
        assert row["verifier_precision_after"] > row["verifier_precision_before"]
        assert (row["rl_seconds"] < 360, row["total_seconds"] < 900, row["peak_gib"] < 10) == (
            True,
            True,
            True,
        )
        shares = [
            f"{100 * row[f'{name}_before']:.1f} → {100 * row[f'{name}_after']:.1f}"
            for name in ("solver_loop_1", "verifier_precision", "verifier_specificity", "solver_loop_2")
        ]
        team = f"{100 * row['before']:.1f} → **{100 * row['after']:.1f}**"
        cost = [f"{row['rl_seconds']:.0f}", f"{row['total_seconds']:.0f}", f"{row['peak_gib']:.1f}"]
        assert f"| {row['seed']} | {' | '.join([team, *shares, *cost])} |" in readme
        before, after, minutes = 100 * row["before"], 100 * row["after"], row["total_seconds"] / 60
        first_page = f"| {row['seed']} | {before:.1f} % → {after:.1f} % | {cost[0]} s | {minutes:.1f} min | {cost[2]} GiB |"
        assert first_page in front
