"""Waiting for an idle machine."""

from __future__ import annotations

import os
import time


def settled_load(quiet: float = 0.3, patience_s: float = 300.0) -> float:
    """Wait until the load average of the last minute is at most `quiet`, or for `patience_s` seconds; return
    the load average.
    """
    until = time.monotonic() + patience_s
    while os.getloadavg()[0] > quiet and time.monotonic() < until:
        time.sleep(5)
    return os.getloadavg()[0]
