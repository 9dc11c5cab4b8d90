"""Model paths: an existing folder has one name, its absolute path, however it was given."""

from __future__ import annotations

import os
from pathlib import Path


def absolute_model_path(path: str) -> str:
    """Return the absolute path of an existing folder, without `~`, `..` and trailing slashes; other values, such as hub ids, unchanged."""
    folder = Path(os.path.expanduser(path))
    if not path or not folder.is_dir():
        return path
    return str(folder.resolve() if ".." in folder.parts else folder.absolute())
