"""Locations of the packages that programs may import."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterable

from agent_system.errors import SandboxError


def find_packages(names: Iterable[str]) -> dict[str, str]:
    """Return file or folder name -> path of each package, and of the shared libraries that its
    wheel may have (`numpy.libs`).

    Raises:
        SandboxError: a package is not installed, or the name is not a top-level one.
    """
    paths_by_name: dict[str, str] = {}
    for name in names:
        spec = importlib.util.find_spec(name) if name.isidentifier() else None
        if spec is None or not (spec.submodule_search_locations or spec.has_location):
            raise SandboxError(
                f"sandbox.packages names {name!r}, which is no installed package; install it or "
                "take it out of the list"
            )
        path = os.path.realpath(
            spec.submodule_search_locations[0] if spec.submodule_search_locations else str(spec.origin)
        )
        paths_by_name[os.path.basename(path)] = path
        libraries = os.path.join(os.path.dirname(path), f"{name}.libs")
        if os.path.isdir(libraries):
            paths_by_name[f"{name}.libs"] = libraries
    return paths_by_name
