"""What a program can import: the standard library and the packages that were asked for; what is often used is loaded once for all runs.

C modules that need a library of the system must be loaded here, because a program's view has no such library. Every mapped library and
every page that is touched makes each run slower, so only what small programs use is loaded: `ssl`, `sqlite3`, `bz2` and `lzma` are not,
and cannot be imported.
"""

from __future__ import annotations

import builtins
import importlib
import os
import sys
import warnings
from collections.abc import Mapping, Sequence

OFTEN_USED = (
    "bisect", "collections", "copy", "datetime", "functools", "heapq", "io", "itertools", "json", "math", "operator", "re",
    "string", "time", "traceback", "typing", "zlib",
)  # fmt: skip
# Their libraries are large, and `hashlib` does without.
LEFT_OUT = ("_hashlib", "_ssl")


def preload(packages: Sequence[str]) -> None:
    """Import what programs often use, and `packages`. Raises ImportError when one of `packages` cannot be imported."""
    hidden = {name: sys.modules.get(name) for name in LEFT_OUT}
    sys.modules.update(dict.fromkeys(LEFT_OUT))  # type: ignore[arg-type]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in (*OFTEN_USED, *packages):
            importlib.import_module(name)
    for name, module in hidden.items():
        if module is None:
            del sys.modules[name]
    from _sitebuiltins import Quitter

    # What `site` would add, and programs use.
    builtins.exit, builtins.quit = Quitter("exit", "exit()"), Quitter("quit", "quit()")


def relocate(moved: Mapping[str, str], path: Sequence[str]) -> None:
    """Let later imports look in new places.

    Args:
        moved: folder at the time of loading to folder as programs see it, for packages that are loaded already.
        path: the new `sys.path`.
    """
    for module in list(sys.modules.values()):
        places = getattr(module, "__path__", None)
        if isinstance(places, list):
            module.__path__ = [_moved(place, moved) for place in places]
    sys.path[:] = path
    sys.path_importer_cache.clear()
    sys.prefix = sys.exec_prefix = sys.base_prefix = sys.base_exec_prefix = "/usr"
    sys.executable = ""


def _moved(place: str, moved: Mapping[str, str]) -> str:
    for old, new in moved.items():
        if place == old or place.startswith(old + os.sep):
            return new + place[len(old) :]
    return place
