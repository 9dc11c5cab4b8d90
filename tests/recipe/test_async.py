"""The recipe of asynchronous training runs, made small; its variants differ as they should, and its README is
that of its rows.
"""

import importlib
import json
import os
import shlex
import subprocess
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch

from agent_system.launch.before_models import check_team
from recipe.runs import overrides_of
from tests.docs.test_commands import asked_for
from verl.trainer.config import RunConfig
from verl.trainer.config.spec import ConfigError
from verl.trainer.plan.checks import resolve
from verl.trainer.plan.derived_values import resolve_defaults
from verl.trainer.ppo.core_algos.rollout_correction import compute_rollout_rejection_mask

recipe = importlib.import_module("recipe.async.measure")  # `async` is a keyword
HERE = recipe.HERE
ROWS = json.loads((HERE / "results.json").read_text())
SMALL = [
    "trainer.total_generated_tokens=1",
    "data.train_batch_size=2",
    "data.val_max_samples=4",
    "env.rollout.n=2",
    "env.rollout.val_n=1",
]


def test_the_script_trains_without_waiting_and_keeps_earlier_rows(checkout: Path, tmp_path: Path) -> None:
    earlier = {"workload": "math", "variant": "sync", "seed": 7, "before": 0.5, "after": 0.9, "seconds": 10.0} | {
        "staleness_mean": 0.0, "staleness_max": 0, "idle": 0.5
    }  # fmt: skip
    (tmp_path / "results.json").write_text(json.dumps([earlier]))
    env = os.environ | {"DEMOS": "96", "EMBEDDED_DIR": str(tmp_path / "embedded")}
    arguments = [
        "--workloads",
        "math",
        "--variants",
        "stale_uncorrected",
        "--seeds",
        "7",
        "--out",
        str(tmp_path),
        *SMALL,
    ]
    command = [checkout / ".venv/bin/python", "recipe/async/measure.py", *arguments]
    done = subprocess.run(
        command, cwd=checkout, env=env, check=True, timeout=300, stdout=subprocess.PIPE, text=True
    )
    kept, row = json.loads((tmp_path / "results.json").read_text())
    assert (kept, row["variant"], row["steps"], row["before"]) == (earlier, "stale_uncorrected", 1, None)
    assert 0 <= row["after"] <= 1 and 0 < row["idle"] <= 1 and row["staleness_max"] == 0
    assert (
        json.loads((tmp_path / "curves.json").read_text())["math/stale_uncorrected/7"][0][0]
        == row["generated_tokens"]
    )
    assert "<svg" in (tmp_path / "curves.svg").read_text()
    assert f"| math | `stale_uncorrected` | 50.0 → **{100 * row['after']:.1f}** |" in done.stdout


def configured(workload: str, variant: str, tmp_path: Path) -> RunConfig:
    """The configuration of a run before its checks."""
    script = f"examples/run_{recipe.SCRIPTS[workload]}.sh"
    return asked_for(
        shlex.join(["bash", script, *overrides_of(recipe.keys_of(workload, variant))]), tmp_path
    )[1]


@pytest.mark.parametrize("workload", recipe.SCRIPTS)
def test_variants_differ_in_mode_and_correction_only(workload: str, tmp_path: Path) -> None:
    for variant in recipe.LABELS:
        config = configured(workload, variant, tmp_path / variant)
        resolve_defaults(config)
        check_team(config)
        resolve(config)
        correction, mode = config.algorithm.rollout_correction, config.async_training
        assert correction.rollout_is == (None if variant in ("sync", "stale_uncorrected") else "token")
        assert mode.mode == (variant if variant in ("sync", "one_step_off") else "fully_async")
        assert mode.staleness_threshold == (4 if variant.startswith("stale") else 1)
        assert config.env.params.get("latency_s") == recipe.keys_of(workload, variant).get(
            "env.params.latency_s"
        )
    keys = [set(recipe.keys_of(workload, variant)) for variant in recipe.LABELS]
    differ = set.union(*keys) - set.intersection(*keys)
    assert all(
        key.startswith(("async_training.", "algorithm.rollout_correction.", "trainer.val_before_train"))
        for key in differ
    )


def test_the_variant_without_correction_rejects_nothing_and_is_refused_without_its_bound(
    tmp_path: Path,
) -> None:
    keys = recipe.keys_of("math", "stale_uncorrected")
    mode, bound = (
        keys[f"algorithm.rollout_correction.{name}"] for name in ("rollout_rs", "rollout_rs_threshold")
    )
    mask = torch.ones(1, 4)
    kept, _ = compute_rollout_rejection_mask(torch.tensor([[-1e4, -1.0, 0.0, 1e4]]), mask, mode, bound)
    assert torch.equal(kept, mask)
    config = configured("math", "stale_uncorrected", tmp_path)
    config.algorithm.rollout_correction = type(config.algorithm.rollout_correction)()
    resolve_defaults(config)
    with pytest.raises(ConfigError, match="off-policy correction"):
        resolve(config)


def test_the_table_of_the_readme_is_that_of_the_committed_rows() -> None:
    readme = (HERE / "README.md").read_text(encoding="utf-8")
    for line in recipe.table(ROWS):
        assert f"{line}\n" in readme
    curves = json.loads((HERE / "curves.json").read_text())
    ends = {run: [points[-1][0], round(points[-1][1]), len(points)] for run, points in curves.items()}
    assert ends == {
        f"{row['workload']}/{row['variant']}/{row['seed']}": [
            row["generated_tokens"],
            round(row["seconds"]),
            row["steps"],
        ]
        for row in ROWS
    }


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['workload']}-{row['variant']}-{row['seed']}")
def test_every_run_spent_its_budget_and_has_the_staleness_of_its_variant(row: dict[str, Any]) -> None:
    budget = recipe.keys_of(row["workload"], row["variant"])["trainer.total_generated_tokens"]
    assert budget <= row["generated_tokens"] <= 1.05 * budget
    assert row["staleness_max"] <= {"sync": 0, "one_step_off": 1}.get(row["variant"], 4)


def test_the_modes_that_are_compared_have_three_seeds() -> None:
    measured = {(row["workload"], row["variant"], row["seed"]) for row in ROWS}
    assert set(product(recipe.SCRIPTS, ("sync", "fully_async"), (0, 1, 2))) <= measured
