"""Waiting for a machine that does nothing else."""

from __future__ import annotations

import os
import time


def settled_load(quiet: float = 0.3, patience_s: float = 300.0) -> float:
    """The load of the last minute, once what came before has left it, or after `patience_s` seconds."""
    until = time.monotonic() + patience_s
    while os.getloadavg()[0] > quiet and time.monotonic() < until:
        time.sleep(5)
    return os.getloadavg()[0]
