"""Runs attacks without a sandbox, to show that they succeed there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def run_outside(program: str, folder: Path, **environment: str) -> str:
    """stdout of a program in a plain interpreter."""
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=240,
        env=environment or None,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
