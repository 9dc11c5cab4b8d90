"""The command `verl-mas`."""

import re
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

from agent_system.launch.command import COMMANDS, KEYS, main
from tests.house.source import ROOT


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


# Modules that load torch before they read their options.
SLOW = ("audit", "check-model", "export", "serve")


@pytest.mark.parametrize("name", [name for name in COMMANDS if name not in SLOW])
@pytest.mark.parametrize("option", ["--help", "-h"])
def test_every_command_answers_help_with_its_usage(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str, option: str
) -> None:
    monkeypatch.setattr(sys, "argv", ["verl-mas", name, option])
    if name in KEYS:
        main()
    else:
        with pytest.raises(SystemExit) as ended:
            main()
        assert not ended.value.code
    out, err = capsys.readouterr()
    assert out.startswith(f"usage: verl-mas {name} ") and not err
    pages = re.findall(r"docs/\w+\.md", out)
    assert pages and all((ROOT / page).is_file() for page in pages)


@pytest.mark.parametrize("name", [name for name in COMMANDS if name not in KEYS])
def test_the_usage_of_every_command_names_it_and_its_page(name: str) -> None:
    module = COMMANDS[name][0]
    path = ROOT / module.replace(".", "/")
    file = path / "__main__.py" if path.is_dir() else path.with_suffix(".py")
    if name == "check-model":
        file = ROOT / "verl/trainer/check_model.py"
    parser = file.read_text().partition("ArgumentParser(")[2].partition("add_argument")[0]
    (page,) = re.findall(r'epilog="See (docs/\w+\.md)\."', parser)
    assert f'prog="verl-mas {name}"' in parser and (ROOT / page).is_file()


def test_a_workflow_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "argv", ["verl-mas", "new", "team_of_command"])
    main()
    assert (tmp_path / "team_of_command" / "train.sh").is_file()
    assert capsys.readouterr().out.startswith(f"{tmp_path / 'team_of_command'}\n")
