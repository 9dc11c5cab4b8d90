"""Model paths: an existing folder has one name, its absolute path, however it was given."""

from __future__ import annotations

import os
from pathlib import Path


def absolute_model_path(path: str) -> str:
    """Return the absolute path of an existing folder, without `~`, `..` and trailing slashes; other
    values, such as hub ids, unchanged.

    For a GGUF file, or a folder whose weights are one, it is the folder of the same model as
    safetensors, which the first call writes.

    Raises:
        ModelPathError: a GGUF file that cannot be read.
    """
    folder = Path(os.path.expanduser(path))
    if not path:
        return path
    if path.endswith(".gguf") or (folder.is_dir() and any(folder.glob("*.gguf"))):
        from verl.models.gguf import converted, gguf_file

        file = gguf_file(path)
        if file is not None:
            return str(converted(file))
    if not folder.is_dir():
        return path
    return str(folder.resolve() if ".." in folder.parts else folder.absolute())
