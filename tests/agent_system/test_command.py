"""The command `verl-mas`."""

import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

from agent_system.launch.command import main


def test_modules_of_the_current_folder_are_found_as_with_python_m(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "team_of_this_folder.py").write_text("NAME = 'here'\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    monkeypatch.setattr(sys, "argv", ["verl-mas", "train", "a=b"])

    def run_module(name: str, **_: Any) -> None:
        import team_of_this_folder  # type: ignore[import-not-found]

        assert (name, sys.argv[1:]) == ("verl.trainer.main_ppo", ["a=b"])
        assert team_of_this_folder.NAME == "here"

    monkeypatch.setattr(runpy, "run_module", run_module)
    main()
    sys.modules.pop("team_of_this_folder")


def test_an_unknown_command_is_named_with_the_nearest_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["verl-mas", "reprot", "x"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith("no command 'reprot'; did you mean 'report'?\n\nusage: ")
