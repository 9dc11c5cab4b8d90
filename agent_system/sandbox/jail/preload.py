"""What a program can import: the standard library and the packages that were asked for, loaded once and shared by every run.

C modules are all loaded here, because the view of a program has neither the system's libraries nor a way to execute files.
"""

from __future__ import annotations

import builtins
import importlib
import os
import sys
import warnings
from collections.abc import Mapping, Sequence

# Not loaded: tests of Python itself, and what asks for a terminal, a display or a sound card.
LEFT_OUT = ("_test", "_ctypes_test", "_xxtestfuzz", "xxlimited", "_tkinter", "_curses", "readline", "nis", "ossaudiodev", "_dbm", "_gdbm")
OFTEN_USED = (
    "abc", "argparse", "ast", "asyncio", "atexit", "base64", "bisect", "calendar", "cmath", "collections", "contextlib", "copy",
    "csv", "ctypes", "dataclasses", "datetime", "decimal", "difflib", "enum", "fractions", "functools", "hashlib", "heapq", "inspect",
    "io", "itertools", "json", "linecache", "logging", "math", "multiprocessing", "numbers", "operator", "pickle", "pprint", "queue",
    "random", "re", "signal", "statistics", "string", "struct", "subprocess", "tempfile", "textwrap", "threading", "time", "timeit",
    "traceback", "types", "typing", "unittest", "uuid", "zlib",
)  # fmt: skip


def preload(stdlib: str, packages: Sequence[str]) -> None:
    """Import the standard library's C modules, what programs use most of the rest, and `packages`.

    Raises ImportError when one of `packages` cannot be imported.
    """
    folder = os.path.join(stdlib, "lib-dynload")
    compiled = sorted({name.partition(".")[0] for name in os.listdir(folder)}) if os.path.isdir(folder) else []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in (*OFTEN_USED, *(name for name in compiled if not name.startswith(LEFT_OUT))):
            try:
                importlib.import_module(name)
            except ImportError:
                continue  # this Python was built without it; a program that imports it gets the same error
        for name in packages:
            importlib.import_module(name)
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
