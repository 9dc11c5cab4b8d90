"""The tested function of a program, and the names that judges of such programs import before it.

Programs of the other backend get the text of this file too, so it imports nothing of this package.
"""

from __future__ import annotations

import builtins
import functools
import importlib
import sys
from types import CodeType
from typing import Any

# Judges of APPS and LiveCodeBench, and verl's, import these modules and all of their names. Of
# equal names those of the first count.
USUAL_MODULES = (
    "collections", "typing", "math", "itertools", "functools", "heapq", "bisect", "operator", "string", "re",
    "copy", "datetime", "json",
    "io", "sys",
)  # fmt: skip
# Likewise, but they are imported only for programs that mention one of the names, since that takes
# long.
SLOW_MODULES = {
    "random": "betavariate choice choices expovariate gammavariate gauss getrandbits getstate lognormvariate normalvariate paretovariate "
    "randbytes randint random randrange sample seed setstate shuffle triangular uniform "
    "vonmisesvariate weibullvariate Random SystemRandom",
    "statistics": "correlation covariance fmean geometric_mean harmonic_mean linear_regression mean median median_grouped median_high "
    "median_low mode multimode pstdev pvariance quantiles stdev variance NormalDist StatisticsError",
}
# Judges raise the limit of 1000 nested calls, too.
CALLS_DEEP = 50_000
# LeetCode's starters have the function in this class.
STARTER_CLASS = "Solution"
# Judges of functions import a program as a module, so what it does as a script does not run: that
# may read input, take arguments or exit.
MODULE = "program"


@functools.cache
def usual_names() -> dict[str, str]:
    """Return name -> the usual module that defines it; modules themselves have an empty text."""
    modules_by_name: dict[str, str] = {}
    for module in USUAL_MODULES:
        loaded = vars(importlib.import_module(module))
        for name in loaded.get("__all__") or [name for name in loaded if not name.startswith("_")]:
            modules_by_name.setdefault(name, module)
    for module, names in SLOW_MODULES.items():
        for name in names.split():
            modules_by_name.setdefault(name, module)
    return modules_by_name | dict.fromkeys((*USUAL_MODULES, *SLOW_MODULES), "")


def give_usual_names(compiled: CodeType) -> None:
    """Define those of the usual modules and their names that a program mentions, as builtins: none
    of them is its tested function, unless the program imports it.
    """
    modules_by_name = usual_names()
    parts = [compiled]
    for part in parts:
        parts += [inner for inner in part.co_consts if isinstance(inner, CodeType)]
        # names of attributes as well, which do no harm
        for name in part.co_names:
            if name in modules_by_name and not hasattr(builtins, name):
                module = importlib.import_module(modules_by_name[name] or name)
                setattr(builtins, name, getattr(module, name) if modules_by_name[name] else module)


def allow_deep_calls() -> None:
    """Raise the limit of nested calls."""
    sys.setrecursionlimit(max(sys.getrecursionlimit(), CALLS_DEEP))


def become_module(main: dict[str, Any]) -> None:
    """Name `__main__`, whose names are `main`, as a program is named that another one imports."""
    main["__name__"] = MODULE
    sys.modules[MODULE] = sys.modules["__main__"]


def find_function(main: dict[str, Any], path: str) -> Any:
    """Return a program's function `name`, or the method `Class.name` of a new instance; if it has
    not the one, the other.

    A function that the program has only imported, as `from operator import *` does, comes last.

    Raises:
        NameError: the program defines neither.
    """
    owner, _, name = path.rpartition(".")
    owners = [owner] if owner else ["", STARTER_CLASS]
    if not owner and getattr(main.get(name), "__module__", MODULE) != MODULE:
        owners.reverse()
    for candidate in (*owners, ""):
        if not candidate and name in main:
            return main[name]
        if candidate in main and hasattr(main[candidate], name):
            receiver = main[candidate]
            return getattr(receiver() if isinstance(receiver, type) else receiver, name)
    raise NameError(f"the program defines no {path!r}")


def plain(value: Any) -> Any:
    """Convert a value without a JSON type to one with it, for types with one obvious conversion."""
    if isinstance(value, (set, frozenset, range)) or hasattr(value, "popleft"):
        return list(value)
    if hasattr(value, "tolist"):
        return value.tolist()
    if hasattr(value, "as_integer_ratio"):  # of a fraction or a decimal
        numerator, denominator = value.as_integer_ratio()
        return numerator if denominator == 1 else numerator / denominator
    raise TypeError(f"a {type(value).__name__} has no JSON form")
