"""What an earlier run in the same folder has written is set aside, or continued."""

import json
import logging
from pathlib import Path

import pytest

from verl.trainer.ppo.earlier_files import set_earlier_files_aside

CUT_OFF = '{"step": 4, "wg_'


def earlier_run(run_dir: Path) -> None:
    (run_dir / "trajectories").mkdir(parents=True)
    for name in ("val_000000", "train_000001", "train_000004", "val_000002", "val_000004_1", "train_000002"):
        (run_dir / "trajectories" / f"{name}.jsonl").write_text(name)
    lines = [json.dumps({"step": step, "wg_id": "shared"}) for step in (1, 2, 2, 4)]
    (run_dir / "timeline.jsonl").write_text("\n".join([*lines, CUT_OFF]))


def episodes(folder: Path) -> set[str]:
    return {path.stem for path in folder.iterdir()}


def test_a_fresh_run_begins_with_no_files(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for number in (1, 2):
        earlier_run(tmp_path)
        with caplog.at_level(logging.WARNING):
            set_earlier_files_aside(tmp_path, None)
        assert not (tmp_path / "trajectories").exists()
        assert not (tmp_path / "timeline.jsonl").exists()
        assert len(episodes(tmp_path / f"trajectories.{number}")) == 6
        assert CUT_OFF in (tmp_path / f"timeline.{number}.jsonl").read_text()
        assert f"trajectories.{number} and timeline.{number}.jsonl" in caplog.text


def test_a_resumed_run_keeps_what_is_before_its_step(tmp_path: Path) -> None:
    earlier_run(tmp_path)
    set_earlier_files_aside(tmp_path, 2)
    assert episodes(tmp_path / "trajectories") == {
        "val_000000",
        "train_000001",
        "train_000002",
        "val_000002",
    }
    assert episodes(tmp_path / "trajectories.1") == {"train_000004", "val_000004_1"}
    steps = [json.loads(line)["step"] for line in (tmp_path / "timeline.jsonl").read_text().splitlines()]
    assert steps == [1, 2, 2]
    assert CUT_OFF in (tmp_path / "timeline.1.jsonl").read_text()


@pytest.mark.parametrize("resumed_step", [None, 3])
def test_a_folder_without_files_is_left_alone(
    tmp_path: Path, resumed_step: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    set_earlier_files_aside(tmp_path, resumed_step)
    assert not list(tmp_path.iterdir())
    assert not caplog.text


def test_a_run_that_goes_on_from_its_last_step_moves_nothing(tmp_path: Path) -> None:
    earlier_run(tmp_path)
    (tmp_path / "timeline.jsonl").write_text('{"step": 4}\n')
    set_earlier_files_aside(tmp_path, 4)
    assert {path.name for path in tmp_path.iterdir()} == {"trajectories", "timeline.jsonl"}


def test_credit_is_treated_as_episodes_are(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    earlier_run(tmp_path)
    (tmp_path / "credit").mkdir()
    for step in (1, 2, 3):
        (tmp_path / "credit" / f"step_{step:06d}.json").write_text("{}")
    with caplog.at_level(logging.WARNING):
        set_earlier_files_aside(tmp_path, 2)
    assert episodes(tmp_path / "credit") == {"step_000001", "step_000002"}
    assert episodes(tmp_path / "credit.1") == {"step_000003"}
    assert "trajectories.1, credit.1 and timeline.1.jsonl" in caplog.text
    set_earlier_files_aside(tmp_path, None)
    assert not (tmp_path / "credit").exists()
    assert episodes(tmp_path / "credit.2") == {"step_000001", "step_000002"}


def test_the_episodes_of_samples_that_a_checkpoint_holds_stay(tmp_path: Path) -> None:
    earlier_run(tmp_path)
    (tmp_path / "trajectories" / "train_000003.jsonl").write_text("sampled before step 2 was saved")
    (tmp_path / "trajectories" / "val_000003.jsonl").write_text("comes again")
    set_earlier_files_aside(tmp_path, 2, has_next=True)
    assert {"train_000002", "train_000003"} <= episodes(tmp_path / "trajectories")
    assert {"train_000004", "val_000003"} <= episodes(tmp_path / "trajectories.1")
