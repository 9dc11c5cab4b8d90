"""Imports of programs: the standard library and the configured packages; frequently used modules
are loaded once for all runs.

C modules that need a system library must be loaded here, because a program's file system view has
no such library. Every mapped library and every touched page makes each run slower, so only modules
that small programs use are loaded: `ssl`, `sqlite3`, `bz2` and `lzma` are not, and cannot be
imported.
"""

from __future__ import annotations

import builtins
import importlib
import os
import sys
import warnings
from collections.abc import Mapping, Sequence

from .callee import usual_names

OFTEN_USED = (
    "bisect", "collections", "copy", "datetime", "functools", "heapq", "io", "itertools", "json", "math",
    "operator", "re",
    "string", "time", "traceback", "typing", "zlib",
)  # fmt: skip
# CPUs that a program is told of: a default pool, of a process for each or some threads more, fits
# the limit of processes on every machine.
CPUS = 2
# Their libraries are large, and `hashlib` works without them.
LEFT_OUT = ("_hashlib", "_ssl")


def preload(packages: Sequence[str]) -> None:
    """Import frequently used modules and `packages`. Raise ImportError when one of `packages`
    cannot be imported.
    """
    hidden = {name: sys.modules.get(name) for name in LEFT_OUT}
    # None there makes an import of the module fail, as if it were not installed.
    sys.modules.update(dict.fromkeys(LEFT_OUT))  # type: ignore[arg-type]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in (*OFTEN_USED, *packages):
            importlib.import_module(name)
        usual_names()
    for name, module in hidden.items():
        if module is None:
            del sys.modules[name]
    cpus = min(os.cpu_count() or 1, CPUS)
    os.cpu_count = lambda: cpus
    from _sitebuiltins import Quitter, _Helper, _Printer

    # Builtins that `site` would add.
    builtins.exit = Quitter("exit", "exit()")
    builtins.quit = Quitter("quit", "quit()")
    builtins.help = _Helper()
    for name in ("copyright", "credits", "license"):
        setattr(builtins, name, _Printer(name, "See https://www.python.org/psf/license/"))


def relocate(moved: Mapping[str, str], path: Sequence[str]) -> None:
    """Change the folders of later imports.

    Args:
        moved: folder at the time of loading -> folder as programs see it, for packages that are
            already loaded.
        path: the new `sys.path`.
    """
    for module in list(sys.modules.values()):
        places = getattr(module, "__path__", None)
        if isinstance(places, list):
            module.__path__ = [_moved(place, moved) for place in places]
    sys.path[:] = path
    # Of folders that programs do not see.
    sys.path_importer_cache.clear()
    sys.prefix = sys.exec_prefix = sys.base_prefix = sys.base_exec_prefix = "/usr"
    sys.executable = ""


def _moved(place: str, moved: Mapping[str, str]) -> str:
    for old, new in moved.items():
        if place == old or place.startswith(old + os.sep):
            return new + place[len(old) :]
    return place
