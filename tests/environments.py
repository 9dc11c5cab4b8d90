"""Python environments with packages that do not go together with those of the tests."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest


def python_with(*packages: str) -> str:
    """The Python of an environment with packages, which is built once on a machine."""
    cache = (
        Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
        / "verl_mas"
        / f"{packages[0]}-{sys.version_info.minor}"
    )
    cache.mkdir(parents=True, exist_ok=True)
    made, folder = cache / "made", cache / "venv"
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            subprocess.run(
                [sys.executable, "-m", "venv", "--clear", str(folder)], check=True, capture_output=True
            )
            done = subprocess.run(
                [folder / "bin" / "pip", "install", "-q", *packages], capture_output=True, text=True
            )
            if done.returncode:
                pytest.skip(f"{packages[0]} cannot be installed: {done.stderr.strip()[-300:]}")
            made.touch()
    return str(folder / "bin" / "python")
