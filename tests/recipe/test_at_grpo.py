"""The AT-GRPO recipe runs, made small: two variants, the swap, rows kept from an earlier call, and
the plot.
"""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from agent_system.launch.before_models import check_team
from recipe.at_grpo import before_after
from recipe.at_grpo.measure import (
    COLOURS,
    DEFAULT_MAPS,
    HERE,
    LABELS,
    ONLY,
    PUSHES,
    TASKS,
    keys_of,
    main,
    plot,
    script_of,
)
from recipe.at_grpo.replies import rows_of
from recipe.runs import overrides_of
from tests.docs.test_commands import asked_for
from tests.house.source import ROOT
from verl.trainer.config import RunConfig
from verl.trainer.plan.checks import resolve
from verl.trainer.plan.derived_values import resolve_defaults
from verl.trainer.plan.placement import Placement
from verl.trainer.plan.presets import describe_preset

WORLDS = {"plan_path": "Plan-Path", "sudoku": "Sudoku", "sokoban": "Sokoban"}
ALL_WORLDS = WORLDS | {
    PUSHES: "Sokoban, pushes",
    DEFAULT_MAPS: "Plan-Path, default maps",
    "math": "Mathematics",
    "code": "Code",
}
SMALL = [
    "trainer.total_training_steps=1",
    "data.train_batch_size=2",
    "data.max_response_length=16",
    "data.val_max_samples=4",
    "env.max_steps=2",
]


def test_the_script_trains_swaps_and_keeps_what_was_measured_before(checkout: Path, tmp_path: Path) -> None:
    earlier = {"task": "sudoku", "variant": "at_grpo", "seed": 0, "before": 0.3, "after": 0.9}
    (tmp_path / "results.json").write_text(json.dumps([earlier]))
    arguments = [
        "--tasks",
        "plan_path",
        "--variants",
        "at_grpo",
        "shared",
        "--seeds",
        "7",
        "--jobs",
        "2",
        "--out",
        str(tmp_path),
    ]
    env = os.environ | {"DEMOS": "160", "EMBEDDED_DIR": str(tmp_path / "embedded")}
    command = [checkout / ".venv/bin/python", "recipe/at_grpo/measure.py", *arguments, *SMALL]
    subprocess.run(command, cwd=checkout, env=env, check=True, timeout=400)
    one, shared, kept = json.loads((tmp_path / "results.json").read_text())
    assert (one["variant"], shared["variant"], kept) == ("at_grpo", "shared", earlier)
    assert 0 <= one["before"] <= 1
    assert 0 <= one["after"] <= 1
    assert 0 <= one["swapped"] <= 1
    assert shared["swapped"] is None
    assert one["generated_tokens"] > 0 < one["train_seconds"]
    counted = rows_of(checkout / "outputs/verl-mas/at_grpo_plan_path_at_grpo_seed7", 7)
    assert [row["success"] for row in counted] == [
        round(one[name], 3) for name in ("before", "after", "swapped")
    ]
    assert all(0 <= row[role] <= 1 for row in counted for role in ("tool", "executor"))
    curves = json.loads((tmp_path / "curves.json").read_text())
    assert [tokens for tokens, _ in curves["plan_path/at_grpo/7"]] == [0, one["generated_tokens"]]
    assert "<svg" in (tmp_path / "curves.svg").read_text()


def test_a_variant_that_no_task_has_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        "sys.argv", ["measure.py", "--tasks", "sudoku", "math", "--variants", "long", "explore"]
    )
    with pytest.raises(SystemExit):
        main()
    assert "none of --tasks sudoku math has --variants long explore" in capsys.readouterr().err


RUNS = {(task, variant) for variant in LABELS for task in ONLY.get(variant, TASKS)}


def test_every_variant_and_task_has_its_settings() -> None:
    config = yaml.safe_load((HERE / "config.yaml").read_text())
    assert {"script", *config["variants"]} == set(LABELS) == set(COLOURS)
    assert set(config["compared"]) == set(TASKS)
    for task, steps in config["decay_steps"].items():
        assert {(task, variant) for variant in steps} == {
            (task, variant) for variant in config["variants"]
        } & RUNS
    steps, budget = (
        config["decay_steps"]["plan_path"],
        config["compared"]["plan_path"]["trainer.total_generated_tokens"],
    )
    for long, one in {"long": "at_grpo", "long_explore": "explore"}.items():
        assert (
            steps[long] == 2 * steps[one]
            and config["variants"][long]["trainer.total_generated_tokens"] == 2 * budget
        )


@pytest.mark.parametrize(("task", "variant"), sorted(RUNS))
def test_the_keys_of_every_variant_can_be_and_have_an_effect(task: str, variant: str, tmp_path: Path) -> None:
    config, placement = checked(
        [f"examples/run_{script_of(task)[0]}.sh", *overrides_of(keys_of(task, variant))], tmp_path
    )
    trainer, optim = config.trainer, config.actor_rollout_ref.actor.optim
    assert (trainer.total_generated_tokens > 0) == (variant != "script")
    assert (trainer.total_training_steps == 1000) == (variant != "script")
    if optim.lr_scheduler_type == "constant":
        assert optim.total_training_steps == -1
    elif variant == "script":
        assert optim.total_training_steps == trainer.total_training_steps
    else:
        assert 20 <= optim.total_training_steps <= (120 if "long" in variant else 60)
    parallel = variant in ("parallel", "single") or (task, variant) == ("math", "script")
    assert config.rollout.sampling == ("parallel" if parallel else "tree")
    assert config.env.rollout.n == (8 if (task, variant) == ("math", "script") else 4 if parallel else 1)
    assert len(placement.policy_ids) == (1 if variant in ("shared", "single") else 2)


@pytest.mark.parametrize("device", ["auto", "cpu"])
@pytest.mark.parametrize("task", TASKS)
def test_the_keys_for_a_real_model_can_be_and_have_an_effect(
    task: str, device: str, tmp_path: Path, tiny_model_dir: Path
) -> None:
    arguments = [
        f"examples/run_{script_of(task)[0]}.sh",
        "trainer.n_gpus_per_node=1",
        f"trainer.device={device}",
    ]
    config, _ = checked(arguments, tmp_path, f"MODEL_PATH={tiny_model_dir}")
    assert config.rollout.sampling == ("parallel" if task == "math" else "tree")
    assert config.actor_rollout_ref.model.path == str(tiny_model_dir)


def checked(script: list[str], tmp_path: Path, *variables: str) -> tuple[RunConfig, Placement]:
    """The configuration of a script and its placement, after all checks before a run."""
    _, config = asked_for(shlex.join([*variables, "bash", *script]), tmp_path)
    describe_preset(config)
    resolve_defaults(config)
    check_team(config)
    return config, resolve(config)


def test_the_plot_has_a_panel_for_each_task(tmp_path: Path) -> None:
    plot(
        {"sudoku/at_grpo/0": [[0, 0.1], [5, 0.2]], "plan_path/parallel/0": [[0, 0.1], [5, 0.2]]},
        tmp_path / "curves.svg",
    )
    text = (tmp_path / "curves.svg").read_text()
    assert text.count("million generated tokens") == 2


def test_the_tables_of_the_readme_are_the_committed_rows() -> None:
    rows = json.loads((HERE / "results.json").read_text())
    readme = (HERE / "README.md").read_text(encoding="utf-8")
    names = {
        "at_grpo": "AT-GRPO",
        "explore": "AT-GRPO, ε = 0.8",
        "long": "AT-GRPO, twice the tokens",
        "long_explore": "AT-GRPO, ε = 0.8, twice the tokens",
        "parallel": "parallel, `uid`",
        "turn_blind": "turn-blind trees",
        "shared": "AT-GRPO, one policy",
        "single": "one agent",
    }
    for row in rows:
        swapped = "—" if row["swapped"] is None else f"{100 * row['swapped']:.1f}"
        success = f"{100 * row['before']:.1f} → **{100 * row['after']:.1f}**"
        minutes = f"{row['train_seconds'] / 60:.0f}"
        if row["variant"] == "script":
            tokens = f"{row['generated_tokens'] / 1e6:.2f}"
            world = ALL_WORLDS[row["task"]]
            assert (
                f"| {world} | {row['seed']} | {success} | {swapped} | {row['steps']} | {tokens} | {minutes} |"
                in readme
            )
        else:
            places = {
                "plan_path": ("variants with", ""),
                DEFAULT_MAPS: ("on the generator's default maps", ""),
            }
            where, world = places.get(
                row["task"], ("The single agent beside", f"| {ALL_WORLDS[row['task']]} ")
            )
            (table,) = [part for part in readme.split("\n## ") if where in part.partition("\n")[0]]
            assert (
                f"{world}| {names[row['variant']]} | {row['seed']} | {success} | {swapped} | {row['steps']} "
                f"| {minutes} |" in table
            )
    curves = json.loads((HERE / "curves.json").read_text())
    assert {run: points[-1][1] for run, points in curves.items()} == {
        f"{row['task']}/{row['variant']}/{row['seed']}": row["after"] for row in rows
    }


def test_the_counted_replies_are_those_of_the_committed_rows() -> None:
    readme = (HERE / "README.md").read_text(encoding="utf-8")
    counted = json.loads((HERE / "replies.json").read_text())
    scripts = {row["seed"]: row for row in ROWS if (row["task"], row["variant"]) == ("plan_path", "script")}
    for row in counted:
        assert row["success"] == scripts[row["seed"]][row["episodes"]]
        cells = " | ".join(f"{100 * row[name]:.1f}" for name in ("success", "tool", "executor"))
        assert f"| {row['seed']} | {row['episodes']} | {cells} |" in readme
    assert len(counted) == 3 * len(scripts)


ROWS = json.loads((HERE / "results.json").read_text())


COMPARED = [row for row in ROWS if row["variant"] != "script"]


@pytest.mark.parametrize("row", COMPARED, ids=lambda row: f"{row['task']}-{row['variant']}-{row['seed']}")
def test_every_run_spent_its_budget_and_hardly_more(row: dict[str, Any]) -> None:
    """The last step may go beyond it; runs of another budget are not compared with these."""
    budget = keys_of(row["task"], row["variant"])["trainer.total_generated_tokens"]
    assert budget <= row["generated_tokens"] <= 1.05 * budget


def success(task: str, column: str, *variants: str) -> str:
    """A cell of the table of all worlds: the values of the first variant that was measured, by seed."""
    rows = [
        row | {"task": "math", "variant": "recipe"}
        for row in json.loads((ROOT / "recipe/math/results.json").read_text())
    ]
    rows += [
        row | {"task": "code", "variant": "recipe"}
        for row in json.loads((ROOT / "recipe/code/results.json").read_text())
    ]
    for variant in variants:
        found = sorted(
            (row["seed"], row[column])
            for row in [*ROWS, *rows]
            if (row["task"], row["variant"]) == (task, variant)
        )
        if found:
            return ", ".join(f"{100 * value:.1f}" for _, value in found) + (
                " ¹" if variant == "recipe" else ""
            )
    return "—"


def compared(task: str) -> str:
    """A row of the table of all worlds."""
    team = ("recipe",) if task == "math" else ()
    trees = ("script",) if task in ("sudoku", "sokoban", PUSHES) else ("recipe",) if task == "code" else ()
    cells = [success(task, column, "single") for column in ("before", "after")]
    cells += [
        success(task, "before", "at_grpo", "parallel", *team, *trees),
        success(task, "after", "parallel", *team),
    ]
    cells += [success(task, "after", "at_grpo", *trees), success(task, "after", "shared")]
    return " | ".join(cells)


@pytest.mark.parametrize(("task", "world"), ALL_WORLDS.items())
def test_the_table_of_all_worlds_has_the_committed_rows(task: str, world: str) -> None:
    assert f"| {world} | {compared(task)} |\n" in (HERE / "README.md").read_text(encoding="utf-8")


def test_the_figures_in_the_text_are_the_committed_rows() -> None:
    readme = " ".join((HERE / "README.md").read_text(encoding="utf-8").split())
    rows = [row for row in ROWS if row["task"] == "plan_path"]

    def percents(variant: str) -> list[float]:
        return [
            100 * row["after"]
            for row in sorted(rows, key=lambda row: row["seed"])
            if row["variant"] == variant
        ]

    first, second, third = percents("at_grpo")
    assert f"AT-GRPO ends at {first:.1f}, {second:.1f} and {third:.1f} %" in readme
    said = {
        "parallel": "with as many tokens",
        "turn_blind": "Turn-blind trees",
        "shared": "for both roles",
        "single": "parallel episodes,",
    }
    for variant, words in said.items():
        first, second, third = percents(variant)
        assert f"{words} end at {first:.1f}, {second:.1f} and {third:.1f} %" in readme.replace(
            "ends at", "end at"
        )
    swapped = [row for row in rows if row["swapped"] is not None and row["variant"] != "script"]
    low, high = min(row["swapped"] for row in swapped), max(row["swapped"] for row in swapped)
    assert f"fall to between {100 * low:.0f} and {100 * high:.0f} %" in readme
    gained = [100 * (row["swapped"] - row["before"]) for row in swapped]
    assert f"{min(gained):+.0f} to {max(gained) + 1e-9:+.0f} points relative to the warm start" in readme
    steps = {variant: [row["steps"] for row in rows if row["variant"] == variant] for variant in LABELS}
    spent = f"in {min(steps['parallel'])} to {max(steps['parallel'])} steps instead of {min(steps['at_grpo'])} to {max(steps['at_grpo'])}"
    assert spent in readme
    tokens = f"{keys_of('plan_path', 'at_grpo')['trainer.total_generated_tokens']:,}"
    assert f"{tokens} generated tokens" in readme


@pytest.mark.parametrize("task", WORLDS)
def test_what_the_text_says_of_a_script_are_its_rows(task: str) -> None:
    readme = " ".join((HERE / "README.md").read_text(encoding="utf-8").split())
    front = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    rows = sorted(
        (row for row in ROWS if row["task"] == task and row["variant"] == "script"),
        key=lambda row: row["seed"],
    )
    assert [row["seed"] for row in rows] == [0, 1, 2]
    before, after = (
        " and ".join(", ".join(f"{100 * row[name]:.1f}" for row in rows).rsplit(", ", 1))
        for name in ("before", "after")
    )
    assert f"from {before} % to {after} %" in readme
    ends = list(dict.fromkeys(f"{100 * bound(row['after'] for row in rows):g}" for bound in (min, max)))
    assert f"`examples/run_{task}.sh`" in front and f"to {'-'.join(ends)} %" in front


def test_what_the_text_says_of_swapped_scripts_are_their_rows() -> None:
    readme = " ".join((HERE / "README.md").read_text(encoding="utf-8").split())
    for task, world in WORLDS.items():
        gained = [
            100 * (row["swapped"] - row["before"])
            for row in ROWS
            if row["variant"] == "script" and row["task"] == task
        ]
        points = dict.fromkeys(f"{bound(gained):+.0f}" for bound in (min, max))
        assert f"{world} {' to '.join(points)} points relative to the warm start" in readme


def test_two_builds_are_compared_seed_by_seed_in_rows_that_an_earlier_call_keeps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seconds = {("earlier", 0): 200.0, ("this", 0): 100.0, ("earlier", 1): 100.0, ("this", 1): 30.0}
    played = []

    def stub(earlier: Path, task: str, variant: str, seed: int) -> list[dict[str, Any]]:
        played.append((earlier, seed))
        who = {"task": task, "variant": variant, "seed": seed}
        return [
            who | {"build": build, "train_seconds": seconds[build, seed]} for build in ("earlier", "this")
        ]

    monkeypatch.setattr(before_after, "measure", stub)
    monkeypatch.setattr(before_after, "OUT", tmp_path / "before_after.json")
    for seed in ("0", "1", "0"):
        monkeypatch.setattr(sys, "argv", ["before_after.py", "--earlier", str(tmp_path), "--seeds", seed])
        before_after.main()
    assert played == [(tmp_path, 0), (tmp_path, 1), (tmp_path, 0)]
    assert len(json.loads((tmp_path / "before_after.json").read_text())) == 4
    assert json.loads(capsys.readouterr().out.splitlines()[-1]) == {"time_ratio": 0.4, "spread": [0.3, 0.5]}
