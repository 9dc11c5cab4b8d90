"""A disk that is full or refuses is one line with the file and the fix; any other OSError stays what
it is.
"""

import errno
import os
from pathlib import Path

import pytest

from verl.utils.disk import DiskError, writing


@pytest.mark.parametrize(
    ("number", "fix"),
    [
        (errno.ENOSPC, "free space there"),
        (errno.EDQUOT, "free space there"),
        (errno.EROFS, "make it writable"),
    ],
)
def test_file_cause_and_fix_are_named(tmp_path: Path, number: int, fix: str) -> None:
    with pytest.raises(DiskError) as error, writing(tmp_path / "metrics.jsonl"):
        raise OSError(number, os.strerror(number))
    assert str(error.value).startswith(
        f"{tmp_path}/metrics.jsonl could not be written: {os.strerror(number)}; {fix}, or "
    )
    assert "trainer.default_local_dir" in str(error.value)


def test_a_device_without_room_names_the_file_that_was_written() -> None:
    with (
        pytest.raises(DiskError, match="/dev/full could not be written: No space left on device"),
        writing(Path("/dev/full")),
    ):
        Path("/dev/full").write_text("x")


def test_a_file_in_the_place_of_a_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "trajectories").write_text("")
    with (
        pytest.raises(DiskError, match=f"{tmp_path}/trajectories could not be written: File exists"),
        writing(tmp_path / "trajectories" / "a"),
    ):
        (tmp_path / "trajectories").mkdir()


def test_a_folder_that_cannot_be_made_is_named() -> None:
    with (
        pytest.raises(DiskError, match="/proc/nowhere could not be written: No such file or directory"),
        writing(Path("/proc/nowhere")),
    ):
        Path("/proc/nowhere").mkdir()


@pytest.mark.parametrize(
    "error",
    [
        ConnectionResetError(errno.ECONNRESET, "reset"),
        FileNotFoundError(errno.ENOENT, "none"),
        OSError("bug"),
    ],
)
def test_other_os_errors_are_not_converted(tmp_path: Path, error: OSError) -> None:
    with pytest.raises(type(error)) as raised, writing(tmp_path):
        raise error
    assert raised.value is error
