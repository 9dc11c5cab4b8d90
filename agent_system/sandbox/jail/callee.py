"""The tested function of a program, and the names that judges of such programs import before it.

Programs of the other backend get the text of this file too, so it imports nothing of this package.
"""

from __future__ import annotations

import importlib
import sys
from types import CodeType
from typing import Any

# Judges of APPS and LiveCodeBench, and verl's, import these modules and all of their names. Of modules with the same name the first counts.
USUAL_MODULES = (
    "collections", "typing", "math", "itertools", "functools", "heapq", "bisect", "operator", "string", "re", "copy", "random", "datetime",
    "json", "io", "statistics", "sys",
)  # fmt: skip
# Judges raise the limit of 1000 calls, too.
CALLS_DEEP = 50_000
# Answers with several forms name the class in which LeetCode's starters have the function.
STARTER_CLASS = "Solution"


def give_usual_names(compiled: CodeType, main: dict[str, Any]) -> None:
    """Define those of the usual modules and their names that a program mentions, and allow deep recursions."""
    sys.setrecursionlimit(max(sys.getrecursionlimit(), CALLS_DEEP))
    missing = _mentioned(compiled) - main.keys() - vars(sys.modules["builtins"]).keys()
    for module in USUAL_MODULES:
        if not missing:
            break
        if module in missing:
            main[module] = importlib.import_module(module)
            missing.discard(module)
        # Few programs mention names of modules that take long to load.
        names = vars(sys.modules.get(module) or importlib.import_module(module))
        public = names.get("__all__") or [name for name in names if not name.startswith("_")]
        for name in missing.intersection(public) - set(USUAL_MODULES):
            main[name] = names[name]
            missing.discard(name)


def _mentioned(compiled: CodeType) -> set[str]:
    """Return the names in a program, of attributes as well, that its top level does not assign before all else."""
    names: set[str] = set()
    parts = [compiled]
    for part in parts:
        names.update(part.co_names)
        parts += [inner for inner in part.co_consts if isinstance(inner, CodeType)]
    return names


def find_function(main: dict[str, Any], path: str) -> Any:
    """Return a program's function `name`, or the method `Class.name` of a new instance; if it has not the one, the other.

    Raises:
        NameError: the program defines neither.
    """
    owner, _, name = path.rpartition(".")
    owners = [owner] if owner else ["", STARTER_CLASS]
    for candidate in (*owners, ""):
        if not candidate and name in main:
            return main[name]
        if candidate in main and hasattr(main[candidate], name):
            found = main[candidate]
            return getattr(found() if isinstance(found, type) else found, name)
    raise NameError(f"the program defines no {path!r}")


def plain(value: Any) -> Any:
    """Convert a value without a JSON type to one with it, for types with one obvious conversion."""
    if isinstance(value, (set, frozenset, range)) or hasattr(value, "popleft"):
        return list(value)
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"a {type(value).__name__} has no JSON form")
