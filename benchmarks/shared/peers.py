"""Packages that benchmarks compare with, apart from those that this project installs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

CACHE = Path(__file__).resolve().parents[2] / ".cache" / "peers"


def installed(requirement: str) -> Path:
    """Return a folder with a package, installed from PyPI without its dependencies the first time.

    Args:
        requirement: name and version, `trl==1.16.0`.

    Raises:
        CalledProcessError: it cannot be installed.
    """
    folder = CACHE / requirement
    if not folder.is_dir():
        install = ["-m", "pip", "install", "-q", "--no-deps", "--target", str(folder), requirement]
        subprocess.run([sys.executable, *install], check=True)
    return folder
