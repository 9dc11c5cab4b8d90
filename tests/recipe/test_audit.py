"""The recipe of audits runs, made small, and its page says what its rows say."""

import json
import os
import subprocess
from pathlib import Path

from recipe.audit.measure import CONFIG, summarise
from tests.house.source import ROOT

SMALL = [
    "trainer.total_training_steps=1",
    "data.train_batch_size=2",
    "data.max_response_length=16",
    "env.rollout.n=2",
]


def test_the_script_trains_a_team_and_audits_it(checkout: Path, tmp_path: Path) -> None:
    (tmp_path / "results.json").write_text(json.dumps([{"world": "search", "seed": 7, "reward": 0.3}]))
    env = os.environ | {"DEMOS": "96"}
    command = [checkout / ".venv/bin/python", "recipe/audit/measure.py", "--seeds", "7", "--worlds", "math"]
    subprocess.run([*command, "--out", str(tmp_path), *SMALL], cwd=checkout, env=env, check=True, timeout=280)
    row, kept = json.loads((tmp_path / "results.json").read_text())
    assert kept == {"world": "search", "seed": 7, "reward": 0.3}
    assert (row["world"], row["seed"], row["step"]) == ("math", 7, 1)
    assert list(row["effects"]) == ["Solver Agent", "Verifier Agent"]
    assert row["restored"]["no"] == {} and row["restored"]["yes"] == row["decisions"] > 0
    assert row["estimators"]["remax"]["tokens"] > row["estimators"]["grpo"]["tokens"] > 0
    assert list(json.loads((tmp_path / "curves.json").read_text())) == ["math/7"]


def test_a_row_has_the_numbers_over_all_turns_and_agents() -> None:
    line = dict.fromkeys(("effect", "low", "high", "share", "no_other_action"), 0.5)
    estimator = dict.fromkeys(
        ("spearman", "shuffled_high", "reliability", "zero_advantages", "verdict", "tokens"), 1
    )
    audit = {
        "table": [{"agent": "A", "turn": None, **line}, {"agent": "A", "turn": 1, **line, "effect": 9}],
        "estimators": [
            {"name": "grpo", "agent": None, **estimator},
            {"name": "grpo", "agent": "A", **estimator, "spearman": 9},
        ],
        "episodes": {"mean": 0.4},
        "restored": {"yes": 1, "no": {}},
        "left_out": {"gae": "no values"},
        **dict.fromkeys(("step", "decisions", "alternatives", "continuations", "replies", "tokens"), 2),
    }
    row = summarise("math", 0, audit)
    assert row["effects"]["A"]["effect"] == 0.5 and row["estimators"]["grpo"]["spearman"] == 1
    assert row["estimators"]["grpo"]["agents"]["A"]["spearman"] == 9
    assert row["reward"] == 0.4 and row["left_out"] == ["gae"]


def test_the_tables_of_the_readme_are_those_of_the_committed_rows() -> None:
    folder = ROOT / "recipe" / "audit"
    rows = json.loads((folder / "results.json").read_text())
    readme = (folder / "README.md").read_text(encoding="utf-8")
    assert {row["world"] for row in rows} <= set(CONFIG["worlds"])
    for row in rows:
        for agent, effect in row["effects"].items():
            numbers = f"{effect['effect']:.2f} [{effect['low']:.2f}, {effect['high']:.2f}]"
            share = "" if effect["share"] is None else f"{effect['share']:.2f}"
            assert f"| {row['world']} | {row['seed']} | {agent} | {numbers} | {share} |" in readme
