"""Memory of a process and its descendants."""

from __future__ import annotations

import threading
from pathlib import Path


class MemoryWatch(threading.Thread):
    """Thread that samples the memory of a process and its descendants until `stop`; `peak_gib` is the highest
    sum.
    """

    def __init__(self, pid: int, period_s: float = 2.0) -> None:
        super().__init__(daemon=True)
        self.pid, self.period_s, self.peak_gib = pid, period_s, 0.0
        self._ended = threading.Event()

    def run(self) -> None:
        """Sample until `stop` is called."""
        while not self._ended.wait(self.period_s):
            self.peak_gib = max(self.peak_gib, tree_memory(self.pid) / 2**30)

    def stop(self) -> None:
        """End the sampling."""
        self._ended.set()
        self.join()


def tree_memory(pid: int) -> int:
    """Return the memory of a process and its descendants in bytes (proportional set size: shared pages are
    divided among their users).
    """
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
            except (OSError, IndexError):
                continue
            children.setdefault(parent, []).append(int(entry.name))
    total, stack = 0, [pid]
    while stack:
        current = stack.pop()
        stack += children.get(current, [])
        try:
            rollup = Path(f"/proc/{current}/smaps_rollup").read_text()
        except OSError:
            continue
        total += sum(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:")) * 1024
    return total
