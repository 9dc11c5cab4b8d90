"""Keys of a run that goes on, compared with those of its checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from verl.trainer.checkpoint.changed_keys import describe_changes
from verl.trainer.config import RunConfig
from verl.trainer.plan.command_line import save_config

SCHEMA = asdict(RunConfig())
START = "keys that differ from those of the checkpoint: "


def run_config(change: Callable[[RunConfig], Any]) -> RunConfig:
    config = RunConfig()
    change(config)
    return config


def set_lr(config: RunConfig) -> None:
    config.actor_rollout_ref.actor.optim.lr = 1e-4


def set_orchestra(config: RunConfig) -> None:
    config.agent.orchestra_type = "debate"
    config.agent.orchestra = {"debate": {"rounds": 2, "names": ("a", "b")}}


def set_environment(config: RunConfig) -> None:
    config.env.max_steps = 7
    config.env.params = {"api_key": "sk-1", "url": "http://me:word@host/", "text": "x\n" * 99}


def set_start(config: RunConfig) -> None:
    trainer = config.trainer
    trainer.project_name = trainer.experiment_name = trainer.default_local_dir = "other"
    trainer.total_epochs = trainer.total_training_steps = trainer.total_generated_tokens = 77
    trainer.logger = ["console"]
    trainer.resume_mode = "./global_step_3"


LR = f"actor_rollout_ref.actor.optim.lr: {RunConfig().actor_rollout_ref.actor.optim.lr} -> 0.0001"
NAMES = [
    f"agent.orchestra_type: {RunConfig().agent.orchestra_type} -> debate",
    "agent.orchestra.debate.rounds: (not set) -> 2",
    'agent.orchestra.debate.names: (not set) -> ["a", "b"]',
]
WORLD = [
    f"env.max_steps: {RunConfig().env.max_steps} -> 7",
    "env.params.api_key: (not set) -> ***",
    "env.params.url: (not set) -> http://***@host/",
    f"env.params.text: (not set) -> {('x ' * 99)[:57]}...",
]


@pytest.mark.parametrize(
    ("change", "lines"),
    [
        (lambda config: None, []),
        (set_start, []),
        (set_lr, [LR]),
        (set_orchestra, NAMES),
        (set_environment, WORLD),
        (lambda config: [change(config) for change in (set_lr, set_orchestra, set_environment)], None),
    ],
)  # fmt: skip
def test_keys_that_differ_are_listed_with_both_values(
    tmp_path: Path, change: Callable[[RunConfig], Any], lines: list[str] | None
) -> None:
    save_config(RunConfig(), tmp_path / "config.yaml")
    here = asdict(run_config(change))
    said = describe_changes(tmp_path, here, SCHEMA)
    if lines is not None:
        assert sorted(said.removeprefix(START).split(", env")) == sorted(", ".join(lines).split(", env"))
    save_config(run_config(change), tmp_path / "config.yaml")
    assert describe_changes(tmp_path, here, SCHEMA) == ""
    back = describe_changes(tmp_path, SCHEMA, SCHEMA)
    assert back.count(" -> ") == (len(lines) if lines is not None else 8) and "sk-1" not in said + back


def test_at_most_eight_keys_are_listed(tmp_path: Path) -> None:
    save_config(RunConfig(), tmp_path / "config.yaml")
    here = asdict(RunConfig()) | {"added": {f"key_{i}": i for i in range(11)}}
    said = describe_changes(tmp_path, here, SCHEMA)
    assert said.count(" -> ") == 8 and said.endswith("added.key_7: (not set) -> 7 and 3 more")


def test_a_key_that_an_older_version_lacked_is_not_listed(tmp_path: Path) -> None:
    saved = RunConfig()
    save_config(saved, tmp_path / "config.yaml")
    lines = (tmp_path / "config.yaml").read_text().splitlines(keepends=True)
    shorter = [line for line in lines if not line.startswith("  max_steps:")]
    assert len(shorter) == len(lines) - 1
    (tmp_path / "config.yaml").write_text("".join(shorter))
    assert describe_changes(tmp_path, asdict(run_config(set_lr)), SCHEMA) == START + LR


@pytest.mark.parametrize(
    ("content", "said"), [(None, ""), (b"a: [", "cannot be read, so "), (b"\xff\0", "cannot be read")]
)  # fmt: skip
def test_a_checkpoint_without_a_readable_configuration_ends_no_run(
    tmp_path: Path, content: bytes | None, said: str
) -> None:
    if content is not None:
        (tmp_path / "config.yaml").write_bytes(content)
    line = describe_changes(tmp_path, SCHEMA, SCHEMA)
    assert said in line and bool(said) is bool(line) and "\n" not in line
