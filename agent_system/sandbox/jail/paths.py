"""Paths of the standard library and packages, as programs see them."""

from __future__ import annotations

import os
from collections.abc import Sequence

# First descriptor of folders that a program's user cannot reach by name.
FIRST_FOLDER = 200


def search_path(stdlib: str, packages: str) -> tuple[str, ...]:
    """Return the `sys.path` of programs."""
    return (stdlib, f"{stdlib}/lib-dynload", packages)


def reachable(uid: int | None, paths: dict[str, str]) -> dict[str, str]:
    """Return the paths, with open descriptors in place of those below a folder that the program's
    user may not enter.
    """
    reachable_paths = {}
    for name, path in paths.items():
        reachable_paths[name] = path
        if uid is not None and not _is_open_to_others(path):
            fd = os.open(path, os.O_PATH)
            place = FIRST_FOLDER + len(reachable_paths)
            os.dup2(fd, place)
            os.close(fd)
            reachable_paths[name] = f"/proc/self/fd/{place}"
    return reachable_paths


def _is_open_to_others(path: str) -> bool:
    parts = path.split(os.sep)
    above: Sequence[str] = [os.sep.join(parts[:count]) or os.sep for count in range(1, len(parts))]
    return all(os.stat(folder).st_mode & 0o001 for folder in above)
