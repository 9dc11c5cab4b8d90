"""The stacks of a program's threads: programs ask for more than their memory limit, and the system
gives them as much as the first thread has, of which they use little.
"""

from __future__ import annotations

import _thread
import operator
import sys

LEAST_BYTES = 1 << 20
PAGE_BYTES = 4096


def bound(most_bytes: int, threads: int) -> None:
    """Give new threads stacks of at most `most_bytes`, whatever a program asks for: a larger one
    would exceed its limit at once. Where it asks for none, as many as `threads` have room.
    """
    set_size = _thread.stack_size
    size = 0
    usual_bytes = max(LEAST_BYTES, most_bytes // threads // PAGE_BYTES * PAGE_BYTES)
    set_size(usual_bytes)

    def stack_size(new_size: int = 0, /) -> int:
        nonlocal size
        new_size = operator.index(new_size)
        set_size(min(new_size or usual_bytes, most_bytes))
        previous = size
        size = new_size
        return previous

    _thread.stack_size = stack_size
    if (threading := sys.modules.get("threading")) is not None:
        vars(threading)["stack_size"] = stack_size
