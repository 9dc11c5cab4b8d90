"""The stacks of a program's threads: programs ask for more than their memory limit, of which they
use little.
"""

from __future__ import annotations

import _thread
import operator
import sys


def bound(most_bytes: int) -> None:
    """Give new threads stacks of at most `most_bytes`, whatever a program asks for: a larger one
    would exceed its limit at once.
    """
    set_size = _thread.stack_size
    size = 0

    def stack_size(new_size: int = 0, /) -> int:
        nonlocal size
        new_size = operator.index(new_size)
        set_size(min(new_size, most_bytes))
        previous = size
        size = new_size
        return previous

    _thread.stack_size = stack_size
    if (threading := sys.modules.get("threading")) is not None:
        vars(threading)["stack_size"] = stack_size
