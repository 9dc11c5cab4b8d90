"""A disk that fills up under what a run writes is one line that names the file and the fix; a bug keeps its
traceback.
"""

import errno
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from agent_system.launch import train
from verl.trainer.config import RunConfig


def no_room(*_: Any) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize(
    ("written_by", "file"),
    [
        ("verl.utils.tracking.jsonl.JsonlBackend.log", "metrics.jsonl"),
        ("verl.utils.tracking.jsonl.JsonlBackend.finish", "metrics.jsonl"),
        ("verl.utils.tracking.tensorboard.TensorboardBackend.log", "tensorboard"),
        ("verl.trainer.ppo.report.write_rows", "trajectories/train_000001.jsonl"),
        ("verl.trainer.ppo.report.append_spans", "timeline.jsonl"),
        ("agent_system.launch.train.save_config", "config.yaml"),
        ("verl.trainer.run_state.RunState._content", "run.json"),
        ("verl.trainer.ppo.step_records.write_credit", "credit/step_000001.json"),
    ],
)
def test_a_full_disk_is_one_line(
    written_by: str,
    file: str,
    overrides: Callable[..., list[str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(written_by, no_room)
    changes = {
        "trainer.val_before_train": False,
        "trainer.total_training_steps": 1,
        "trainer.logger": "[jsonl,tensorboard]",
    }
    monkeypatch.setattr(sys, "argv", ["main_ppo", *overrides(changes)])
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    with pytest.raises(SystemExit) as stopped:
        train.cli()
    assert stopped.value.code == 1
    said = capfd.readouterr().err
    assert (
        f"error: {tmp_path}/run/{file} could not be written: No space left on device; free space there"
        in said
    )
    assert "Traceback" not in said


def test_a_bug_that_raises_an_oserror_keeps_its_traceback() -> None:
    def task(config: RunConfig) -> Any:
        raise FileNotFoundError(errno.ENOENT, "a bug", "nowhere")

    with pytest.raises(FileNotFoundError, match="a bug"):
        train.entry(task)(OmegaConf.structured(RunConfig))
