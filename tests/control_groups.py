"""A real control group with a limit of memory, for tests of what happens at it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from verl.utils import host_memory


@contextmanager
def memory_group(limit: int) -> Iterator[Path]:
    """Yield the folder of a group of `limit` bytes inside that of this process; the test is skipped where
    none can be made.
    """
    for version, folder in host_memory._groups():
        made = folder / f"verl-mas-test-{os.getpid()}"
        try:
            made.mkdir()
            (made / version.limit).write_text(str(limit))
        except OSError as error:
            pytest.skip(f"no control group can be made here: {error}")
        yield made
        for _ in range(100):
            try:
                made.rmdir()
                break
            except OSError:  # a process is about to leave it
                time.sleep(0.1)
        return
    pytest.skip("no control groups of memory here")


def inside(group: Path, command: Sequence[str | os.PathLike[str]]) -> list[str]:
    """Return a command that runs another one in a group."""
    return ["bash", "-c", f'echo $$ > "{group}/cgroup.procs" && exec "$@"', "_", *map(str, command)]
