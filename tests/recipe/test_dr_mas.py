"""The Dr. MAS recipe runs, made small: both baselines, rows, curves and the plot."""

import json
import subprocess
from pathlib import Path

from agent_system.environment import Task
from recipe.dr_mas.measure import AGENTS
from recipe.dr_mas.team import REVISER, MathReviserEnv, ReviserEnvOptions
from tests.house.source import ROOT

SMALL = [
    "trainer.total_training_steps=2",
    "data.train_batch_size=2",
    "data.max_response_length=16",
    "data.val_max_samples=4",
    "env.rollout.n=2",
    "env.rollout.val_n=1",
]


def test_the_script_trains_both_baselines_and_draws_them(checkout: Path, tmp_path: Path) -> None:
    out = tmp_path / "not" / "there"
    command = [
        checkout / ".venv/bin/python",
        "recipe/dr_mas/measure.py",
        "--seeds",
        "7",
        "--demos",
        "96",
        "--out",
        str(out),
        *SMALL,
    ]
    subprocess.run(command, cwd=checkout, check=True, timeout=240)
    rows = json.loads((out / "results.json").read_text())
    assert [(row["seed"], row["baseline"], row["steps"]) for row in rows] == [
        (7, "global", 2),
        (7, "agent", 2),
    ]
    assert all(
        row["grad_norm_max"] >= row["grad_norm_median"] >= 0 and 0 <= row["final"] <= 1 for row in rows
    )
    curves = json.loads((out / "curves.json").read_text())
    assert all(len(values) == 2 for run in curves.values() for values in run.values())
    assert "<svg" in (out / "curves.svg").read_text()


def test_the_committed_runs_show_the_spikes_of_the_readme() -> None:
    """18 to 26 spikes per run with one baseline instead of 0 or 1; the largest norm is the Reviser's, 4.6,
    3.2 and 3.1 times as large.
    """
    rows = json.loads((ROOT / "recipe" / "dr_mas" / "results.json").read_text())
    readme = " ".join((ROOT / "recipe" / "dr_mas" / "README.md").read_text(encoding="utf-8").split())
    runs = {(row["seed"], row["baseline"]): row for row in rows}
    assert sorted(runs) == [(seed, baseline) for seed in (0, 1, 2) for baseline in ("agent", "global")]
    one, own = ([runs[seed, baseline] for seed in (0, 1, 2)] for baseline in ("global", "agent"))
    assert (min(r["spikes"] for r in one), max(r["spikes"] for r in one)) == (18, 26)
    assert {r["spikes"] for r in own} == {0, 1}
    assert "18 to 26 spikes per run instead of 0 or 1" in readme
    gaps = [round(a["grad_norm_max"] / b["grad_norm_max"], 1) for a, b in zip(one, own, strict=True)]
    assert (
        "The largest norm with one baseline is {}, {} and {} times that with one per agent.".format(*gaps)
        in readme
    )
    assert all(r["grad_norm_max"] == r["reviser_agent_grad_norm_max"] for r in one)
    for row in rows:
        name = "per agent" if row["baseline"] == "agent" else "global"
        norms = [f"{row[f'{agent}_agent_grad_norm_max']:.2f}" for agent in ("solver", "verifier", "reviser")]
        measured = [
            f"{row['grad_norm_max']:.2f}",
            f"{row['grad_norm_median']:.3f}",
            str(row["spikes"]),
            *norms,
        ]
        assert f"| {row['seed']} | {name} | {' | '.join(measured)} |" in readme


def test_the_committed_curves_have_the_spikes_of_the_committed_rows() -> None:
    folder = ROOT / "recipe" / "dr_mas"
    rows, curves = (json.loads((folder / name).read_text()) for name in ("results.json", "curves.json"))
    assert len(curves) == len(rows)
    for row in rows:
        run = curves[f"{row['baseline']}/{row['seed']}"]
        norms = [norm for agent in AGENTS for norm in run[agent] if norm is not None]
        assert (sum(norm > 0.5 for norm in norms), max(norms)) == (row["spikes"], row["grad_norm_max"])


async def test_only_a_right_revision_earns_the_bonus() -> None:
    env = MathReviserEnv(ReviserEnvOptions(bonus=10.0))
    env.reset(Task("t", "6 + 7?", ground_truth="13"))
    assert [
        (await env.act(agent, answer)).local
        for agent, answer in ((REVISER, "13"), (REVISER, "12"), ("Solver Agent", "13"))
    ] == [
        10,
        0,
        None,
    ]
