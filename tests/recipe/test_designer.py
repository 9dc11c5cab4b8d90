"""The recipe of the Designer: its designs and demonstrations, how the best files are chosen, a run made
small, and the committed rows.
"""

import json
import os
import random
import subprocess
from collections import Counter
from pathlib import Path

import pytest
import yaml

from agent_system.workflows.design import Designer, DesignOptions, Roles
from agent_system.workflows.graph import Team
from recipe.designer.designs import ALL, ENDINGS, cores, draw
from recipe.designer.measure import HERE, LABELS, best, summary, write_files
from recipe.designer.prepare import PROMPT, SHARES, WORLD
from tests.house.source import ROOT

SMALL = [
    "trainer.total_training_steps=1",
    "data.train_batch_size=2",
    "data.val_max_samples=4",
    "env.rollout.n=4",
    "env.rollout.val_n=1",
    "rollout.repeat_calls.designer_agent=2",
]


@pytest.fixture
def roles() -> Roles:
    return Roles(Team.load(HERE / "roles.yaml"), 16, 64)


def test_every_design_of_the_warm_start_is_valid_and_another_team(roles: Roles) -> None:
    read = [roles.read(text) for _, _, text in ALL]
    assert len({design.key for design in read}) == len(ALL) == len(cores()) * len(ENDINGS)
    assert max(design.calls for design in read) == 8 * 4 + 1
    drawn = Counter(draw(random.Random(seed)) for seed in range(1000))
    assert set(drawn) == {text for _, _, text in ALL}


def test_demonstrations_teach_the_form_of_designs_whatever_is_asked(roles: Roles) -> None:
    demos = WORLD.demos(WORLD.course.__class__(count=8_000), 3, frozenset())
    words = [demo[0]["content"].split(":")[0] for demo in demos]
    assert Counter(words).keys() == {"Code", "Check", "File", "Design"}
    designs = [demo for demo, word in zip(demos, words, strict=True) if word == "Design"]
    assert len(designs) == pytest.approx(8_000 * SHARES["Designer"], rel=0.15)
    calls = {kind: [] for kind in ("code", "shelf")}
    for demo in designs:
        kind = demo[0]["content"].split()[-1]
        calls[kind].append(roles.read(demo[1]["content"]).calls)
    means = [sum(numbers) / len(numbers) for numbers in calls.values()]
    assert means[0] == pytest.approx(means[1], rel=0.15)


def test_prompts_are_those_of_training(roles: Roles) -> None:
    config = yaml.safe_load((HERE / "config.yaml").read_text())["common"]
    options = DesignOptions("roles.yaml", prompt=config["agent.orchestra.design.prompt"].strip("'"))
    assert options.prompt == PROMPT
    message = Designer("Designer Agent", options, roles).messages({"env_prompt": "red kiwi code"})[0]
    assert message["content"] == "Design: red kiwi code"


def test_the_best_file_and_the_best_by_kind_are_chosen_by_accuracy(tmp_path: Path) -> None:
    files = write_files(tmp_path)
    teams = [Team.load(file) for file in files.values()]
    assert len({team.key() for team in teams}) == 12
    plays = {(core, kind): [(0.0, 3), (1.0, 5)] for core in files for kind in ("code", "shelf")}
    plays["vote 3", "code"] = [(1.0, 7)] * 4
    plays["alone", "shelf"] = [(1.0, 2)]
    assert best(plays, files) == "vote 3"
    assert best({k: p for k, p in plays.items() if k[1] == "shelf"}, files) == "alone"
    assert summary([plays["vote 3", "code"], plays["vote 3", "shelf"]]) == (0.8333, 6.0)


def test_the_script_trains_a_level(checkout: Path, tmp_path: Path) -> None:
    command = [checkout / ".venv/bin/python", "recipe/designer/measure.py", "--seeds", "7"]
    subprocess.run(
        [*command, "--levels", "all_by_design", "--out", str(tmp_path), *SMALL],
        cwd=checkout,
        env=os.environ | {"DEMOS": "96"},
        check=True,
        timeout=240,
    )
    (row,) = json.loads((tmp_path / "results.json").read_text())
    assert (row["level"], row["seed"], row["steps"]) == ("all_by_design", 7, 1)
    assert 0 <= row["valid_before"] <= 1 and row["design_tokens_after"] > 1


def test_the_table_of_the_readme_is_that_of_the_committed_rows() -> None:
    rows = json.loads((HERE / "results.json").read_text())
    readme = (ROOT / "recipe" / "designer" / "README.md").read_text(encoding="utf-8")
    assert {row["level"] for row in rows} <= set(LABELS)
    for row in rows:
        if row["level"] == "fixed":
            for name in ("single", "by_kind"):
                assert f"| {100 * row[f'{name}_acc']:.1f} | {row[f'{name}_tokens']:.1f} |" in readme
            for core, (acc, tokens) in row["tried"].items():
                assert f"| {core} | {100 * acc:.1f} | {tokens:.1f} |" in readme
            continue
        shares = [(row[f"{name}before"], row[f"{name}after"]) for name in ("", "valid_")]
        cells = [f"{100 * before:.1f} → **{100 * after:.1f}**" for before, after in shares]
        cells += [
            f"{row[f'{name}_tokens_before']:.1f} → **{row[f'{name}_tokens_after']:.1f}**"
            for name in ("role", "design")
        ]
        assert f"| `{row['level']}` | {row['seed']} | {' | '.join(cells)} |" in readme
