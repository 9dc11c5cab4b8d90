"""A model folder has one name however it was typed."""

from pathlib import Path

import pytest

from verl.models.path import absolute_model_path


def test_every_name_of_a_folder_is_its_absolute_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "models" / "m").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "models")
    monkeypatch.setenv("HOME", str(tmp_path))
    whole = str(tmp_path / "models" / "m")
    for typed in (whole, f"{whole}/", "m", "./m/", "../models/m", "~/models/m", f"{whole}/../m"):
        assert absolute_model_path(typed) == whole
    (tmp_path / "models" / "n").symlink_to(whole)
    assert absolute_model_path("n") == str(tmp_path / "models" / "n")


@pytest.mark.parametrize(
    "name", ["Qwen/Qwen3-4B", "gpt2", "/no/such/folder", "~nobody_has_this_name/m", "../nowhere", ""]
)
def test_what_is_no_folder_here_stays_as_it_is(name: str) -> None:
    assert absolute_model_path(name) == name
