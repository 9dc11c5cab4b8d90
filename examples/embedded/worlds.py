"""The worlds of the embedded default: every folder here whose `demos.py` defines `WORLD`."""

from __future__ import annotations

import importlib
from pathlib import Path

from examples.embedded.course import World

WORLDS: dict[str, World] = {
    path.parent.name: importlib.import_module(f"examples.embedded.{path.parent.name}.demos").WORLD
    for path in sorted(Path(__file__).parent.glob("*/demos.py"))
}
