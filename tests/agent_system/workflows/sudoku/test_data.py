import pyarrow.parquet as pq
import pytest

from agent_system.task import task_from_row
from agent_system.workflows.data import main
from agent_system.workflows.sudoku import SudokuEnv


def test_the_command_writes_two_files_that_the_environment_can_play(tmp_path):
    main(
        [
            "sudoku",
            "--out",
            str(tmp_path / "data"),
            "--seed",
            "1",
            "--train",
            "20",
            "--test",
            "5",
            "--difficulty",
            "easy",
        ]
    )
    rows = {
        split: pq.read_table(tmp_path / "data" / f"{split}.parquet").to_pylist()
        for split in ("train", "test")
    }
    assert {split: len(found) for split, found in rows.items()} == {"train": 20, "test": 5}
    for row in rows["train"] + rows["test"]:
        env = SudokuEnv()
        env.reset(task_from_row(row))
        assert 9 <= env.state.puzzle.num_clues == row["extra_info"]["num_clues"] <= 11


def test_an_unknown_difficulty_is_refused_in_one_line_before_anything_is_written(tmp_path, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["sudoku", "--out", str(tmp_path / "data"), "--difficulty", "evil"])
    (line,) = capsys.readouterr().err.splitlines()
    assert "easy, medium, hard" in line and not (tmp_path / "data").exists()
