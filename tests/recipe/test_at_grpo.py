"""The AT-GRPO recipe runs, made small: two variants, the swap, rows kept from an earlier call, and the plot."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from recipe.at_grpo.measure import HERE, LABELS, TASKS, plot
from recipe.runs import overrides_of
from tests.docs.test_commands import asked_for
from tests.house.source import ROOT
from verl.trainer.config.presets import describe_preset
from verl.trainer.config_check import check_config
from verl.trainer.config_effect import check_effect
from verl.trainer.main_ppo import check_team, resolve_defaults
from verl.trainer.placement import build_placement
from verl.trainer.ppo.tree_check import check_sampling

SMALL = ["trainer.total_training_steps=1", "data.train_batch_size=2", "data.val_max_samples=4", "env.max_steps=2"]


def test_the_script_trains_swaps_and_keeps_what_was_measured_before(tmp_path: Path) -> None:
    earlier = {"task": "sudoku", "variant": "at_grpo", "seed": 0, "before": 0.3, "after": 0.9}
    (tmp_path / "results.json").write_text(json.dumps([earlier]))
    arguments = ["--tasks", "plan_path", "--variants", "at_grpo", "shared", "--seeds", "7", "--jobs", "2", "--out", str(tmp_path)]
    env = os.environ | {"DEMOS": "160", "EMBEDDED_DIR": str(tmp_path / "embedded")}
    command = [sys.executable, "recipe/at_grpo/measure.py", *arguments, *SMALL]
    subprocess.run(command, cwd=ROOT, env=env, check=True, timeout=400)
    one, shared, kept = json.loads((tmp_path / "results.json").read_text())
    assert (one["variant"], shared["variant"], kept) == ("at_grpo", "shared", earlier)
    assert 0 <= one["before"] <= 1
    assert 0 <= one["after"] <= 1
    assert 0 <= one["swapped"] <= 1
    assert shared["swapped"] is None
    assert one["generated_tokens"] > 0 < one["train_seconds"]
    curves = json.loads((tmp_path / "curves.json").read_text())
    assert [tokens for tokens, _ in curves["plan_path/at_grpo/7"]] == [0, one["generated_tokens"]]
    assert "<svg" in (tmp_path / "curves.svg").read_text()


def test_every_variant_and_task_has_its_settings() -> None:
    config = yaml.safe_load((HERE / "config.yaml").read_text())
    assert set(config["variants"]) == set(LABELS)
    assert set(config["tokens"]) == set(TASKS)


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("variant", LABELS)
def test_the_keys_of_every_variant_can_be_and_have_an_effect(task: str, variant: str, tmp_path: Path) -> None:
    settings = yaml.safe_load((HERE / "config.yaml").read_text())
    keys = overrides_of(settings["common"] | {"trainer.total_generated_tokens": settings["tokens"][task]} | settings["variants"][variant])
    _, config = asked_for(shlex.join(["bash", f"examples/run_{task}.sh", *keys]), tmp_path)
    describe_preset(config)
    resolve_defaults(config)
    check_team(config)
    placement = build_placement(config.agent, config.actor_rollout_ref)
    check_config(config, placement)
    check_sampling(config)
    check_effect(config, placement)
    assert config.rollout.sampling == ("parallel" if variant == "parallel" else "tree")
    assert len(placement.policy_ids) == (1 if variant == "shared" else 2)


def test_the_plot_has_a_panel_for_each_task(tmp_path: Path) -> None:
    plot({"sudoku/at_grpo/0": [[0, 0.1], [5, 0.2]], "plan_path/parallel/0": [[0, 0.1], [5, 0.2]]}, tmp_path / "curves.svg")
    text = (tmp_path / "curves.svg").read_text()
    assert text.count("million generated tokens") == 2


def test_the_tables_of_the_readme_are_the_committed_rows() -> None:
    rows = json.loads((HERE / "results.json").read_text())
    readme = (HERE / "README.md").read_text(encoding="utf-8")
    names = {"at_grpo": "AT-GRPO", "parallel": "parallel, `uid`", "turn_blind": "turn-blind trees", "shared": "AT-GRPO, one policy"}
    for row in rows:
        swapped = "—" if row["swapped"] is None else f"{100 * row['swapped']:.1f}"
        success = f"{100 * row['before']:.1f} → **{100 * row['after']:.1f}**"
        minutes = f"{row['train_seconds'] / 60:.0f}"
        assert f"| {names[row['variant']]} | {row['seed']} | {success} | {swapped} | {row['steps']} | {minutes} |" in readme
    curves = json.loads((HERE / "curves.json").read_text())
    assert {run: points[-1][1] for run, points in curves.items()} == {
        f"{row['task']}/{row['variant']}/{row['seed']}": row["after"] for row in rows
    }
