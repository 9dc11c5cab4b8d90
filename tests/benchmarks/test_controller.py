"""The benchmark of the controller runs and ends with its one JSON line; episodes in an environment that
blocks run at once.
"""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "controller.py"


def test_the_last_line_is_the_cost_of_a_call(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(
        sys, "argv", [str(SCRIPT), "--episodes", "32", "--blocking-episodes", "256", "--repeats", "1"]
    )
    with caplog.at_level("INFO"):
        runpy.run_path(str(SCRIPT), run_name="__main__")
    result = json.loads(caplog.messages[-1])
    assert result["cpu_ms_per_call"] > 0
    assert 1.5 <= result["blocking_s"] < 12, "16 threads would take 24 s"
