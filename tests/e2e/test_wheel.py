"""The wheel, installed outside the checkout, trains and evaluates by the command `verl-mas`."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

from agent_system.launch.command import COMMANDS
from tests.e2e.conftest import read_metrics, weights
from tests.house.source import ROOT

pytestmark = [pytest.mark.spread, pytest.mark.timeout(600)]


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """The folder in which a wheel of this checkout is installed."""
    source = tmp_path / "source"
    for name in ("verl", "agent_system", "patches"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copyfile(ROOT / name, source / name)
    pip = [sys.executable, "-m", "pip", "-qq", "--disable-pip-version-check"]
    subprocess.run([*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", tmp_path, source], check=True)
    (wheel,) = tmp_path.glob("verl_mas-*.whl")
    install = [*pip, "install", "--no-deps", "--no-compile", "--target", tmp_path / "site"]
    subprocess.run([*install, wheel], check=True)
    return tmp_path / "site"


def test_the_wheel_trains_and_evaluates_outside_the_checkout(
    installed: Path, overrides: Callable[..., list[str]], user_package: Path, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    env = os.environ | {"PYTHONPATH": f"{installed}:{user_package}"}

    def call(*command: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*map(str, command)], cwd=elsewhere, env=env, capture_output=True, text=True)

    found = call(
        sys.executable,
        "-P",
        "-c",
        "import verl, agent_system, patches; print(verl.__file__, agent_system.__file__, patches.__file__)",
    )
    assert [Path(file).parents[1] for file in found.stdout.split()] == [installed] * 3
    keys = [*overrides({"trainer.total_training_steps": 1}), f"hydra.run.dir={elsewhere}"]
    command = (sys.executable, installed / "bin" / "verl-mas")
    assert [call(*command, "check", *keys).returncode, call(*command, "check", "data.sed=1").returncode] == [
        0,
        1,
    ]
    for name in ("train", "eval"):
        done = call(*command, name, *keys)
        assert done.returncode == 0, done.stderr[-2000:]
    assert set(weights(tmp_path / "run", 1)) == {"asker", "verifier_agent"}
    assert [line["step"] for line in read_metrics(tmp_path / "run") if "actor/lr" in line] == [1]
    assert "evaluating" in done.stderr and "global_step_1" in done.stderr
    done = call(*command, "report", tmp_path / "run")
    assert done.returncode == 0 and "report.html" in done.stdout, done.stderr
    assert all(find_spec(module) for module, _, _ in COMMANDS.values())
    unknown = call(*command, "trian")
    assert unknown.returncode == 2 and all(f"  {name} " in unknown.stderr for name in COMMANDS)
