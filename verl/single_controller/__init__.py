"""One driver, many workers: the trainer calls a method of a worker group and every worker runs its share.

The names of the package itself are verl's.
"""

from typing import Any


def __getattr__(name: str) -> Any:
    from verl.compat import controller as verls

    return getattr(verls, name)
