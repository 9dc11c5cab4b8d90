"""One driver, many workers: the trainer calls a method of a worker group and every worker runs its
share.

Names imported from the package itself are those of verl.
"""

from typing import Any


def __getattr__(name: str) -> Any:
    from verl.compat import controller

    return getattr(controller, name)
