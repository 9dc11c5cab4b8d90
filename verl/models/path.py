"""How a model is named: a folder that is there has one name, whatever was typed and wherever it was typed."""

from __future__ import annotations

import os
from pathlib import Path


def absolute_model_path(path: str) -> str:
    """The absolute name of a folder that is there, without `~`, `..` and slashes at the end; anything else, as a hub id, as it is."""
    folder = Path(os.path.expanduser(path))
    if not path or not folder.is_dir():
        return path
    return str(folder.resolve() if ".." in folder.parts else folder.absolute())
