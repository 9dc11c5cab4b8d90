"""Memory of the machine and of the control groups that this process is in, and what the system kills for lack
of it.

The kernel kills a process without a word when a control group or the machine has no memory left.
`kills_are_told` starts a second process of a few MiB, which outlives the run and writes the cause and what
the run held.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

GIB = 2**30
CGROUPS = Path("/sys/fs/cgroup")
_ENDED = b"ended"
_SECONDS = 0.5
_WAYS = (
    "lower actor_rollout_ref.actor.ppo_max_token_len_per_gpu or actor_rollout_ref.rollout.max_num_seqs, use "
    "adapters (agent.specialization=lora), or free memory"
)


@dataclass(frozen=True)
class _Version:
    """Names of one version of control groups: folder below `CGROUPS`, entry of /proc/self/cgroup, files."""

    folder: str
    entry: str
    limit: str
    usage: str
    events: str


_VERSIONS = (
    _Version("", "", "memory.max", "memory.current", "memory.events"),
    _Version("unified", "", "memory.max", "memory.current", "memory.events"),
    _Version("memory", "memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "memory.oom_control"),
)


def _numbers(path: Path) -> dict[str, int]:
    try:
        pairs = (line.split() for line in path.read_text().splitlines())
        return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}
    except OSError:
        return {}


def _groups(
    root: Path = CGROUPS, cgroup_file: Path = Path("/proc/self/cgroup")
) -> Iterator[tuple[_Version, Path]]:
    """Yield the folders of this process's memory groups and of all groups around them, which limit it too."""
    try:
        entries = [line.split(":", 2) for line in cgroup_file.read_text().splitlines()]
    except OSError:
        entries = []
    for version in _VERSIONS:
        paths = [path for _, names, path in entries if version.entry in names.split(",")]
        folder = root / version.folder
        # In a container without a name space of its own the path is one of the machine: parts of it are
        # missing.
        inner = folder / (paths[0] if paths else "").lstrip("/")
        while True:
            if (inner / version.limit).is_file():
                yield version, inner
            if inner == folder:
                break
            inner = inner.parent


def free_memory() -> int:
    """Return the bytes of host memory that this process and those it starts can have: what is free, within
    the limits of its control groups.
    """
    import psutil

    free = int(psutil.virtual_memory().available)
    for version, folder in _groups():
        try:
            limit = int((folder / version.limit).read_text())
            usage = int((folder / version.usage).read_text())
        except (OSError, ValueError):
            continue  # no limit
        # Pages of files are given back when processes need memory.
        stat = _numbers(folder / "memory.stat")
        free = min(
            free, limit - usage + sum(_with_inner(stat, name) for name in ("inactive_file", "active_file"))
        )
    return max(0, free)


def limit_of_memory() -> int:
    """Return the smallest limit of this process's control groups, or the machine's memory, in bytes."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for version, folder in _groups():
        try:
            limits.append(int((folder / version.limit).read_text()))
        except (OSError, ValueError):
            continue
    return min(limits)


def _with_inner(stat: Mapping[str, int], name: str) -> int:
    """Return a number of memory.stat with that of inner groups, which usage contains in both versions."""
    return stat.get(f"total_{name}", stat.get(name, 0))


def kills_for_memory() -> tuple[int, bool]:
    """Return how many processes the kernel has killed for lack of memory in this process's control group, or
    on the machine where no group says it, and whether the group says it.
    """
    for version, folder in _groups():
        count = _numbers(folder / version.events).get("oom_kill")
        if count is not None:
            return count, True
    return _numbers(Path("/proc/vmstat")).get("oom_kill", 0), False


_KILLS_BEFORE, _ = kills_for_memory()


def note_of_kills() -> str:
    """Return what to add to the error of a process that died; empty if none on this machine was killed for
    lack of memory since this module was imported.
    """
    kills, of_group = kills_for_memory()
    count = kills - _KILLS_BEFORE
    if count <= 0:
        return ""
    return (
        f" (the system has killed {count} {'process' if count == 1 else 'processes'} for lack of memory "
        f"{'here' if of_group else 'on this machine, of this run or another,'} since this one began, within "
        f"{limit_of_memory() / GIB:.1f} GiB: {_WAYS})"
    )


@contextmanager
def kills_are_told(ways: str = _WAYS) -> Iterator[None]:
    """Have another process say on stderr that the kernel killed this one for lack of memory, what it held,
    and the ways out.
    """
    command = [sys.executable, "-S", "-P", __file__, str(os.getpid()), ways]
    try:
        watcher = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True
        )
    except OSError:
        yield  # a machine that has no room for one more process
        return
    assert watcher.stdin is not None, "it is a pipe"
    owner = os.getpid()
    try:
        yield
    finally:
        if os.getpid() == owner:  # not a child that was forked inside
            _end(watcher)


def _end(watcher: subprocess.Popen[bytes]) -> None:
    assert watcher.stdin is not None, "it is a pipe"
    try:
        watcher.stdin.write(_ENDED)
        watcher.stdin.close()
    except OSError:
        pass  # it was killed
    try:
        watcher.wait(timeout=5)
    except subprocess.TimeoutExpired:
        watcher.kill()
        watcher.wait()


def _watch(pid: int, ways: str) -> None:
    """Look at a process until the pipe on standard input closes or the process has gone."""
    import select

    try:
        # Children of the process may hold the pipe open.
        process = os.pidfd_open(pid)
    except (AttributeError, OSError):
        return
    peak_bytes = 0
    kills = before = kills_for_memory()
    while not (ready := select.select([0, process], [], [], _SECONDS)[0]):
        peak_bytes = max(peak_bytes, _held_with_children(pid))
        # A kill of long ago, of another process, is not the cause.
        before = kills
        kills = kills_for_memory()
    # Without its word the process was killed.
    if 0 in ready and os.read(0, len(_ENDED)) == _ENDED:
        return
    time.sleep(_SECONDS)
    count, of_group = kills_for_memory()
    if count > before[0]:
        sys.stderr.write(
            f"error: the system {'' if of_group else 'probably '}killed this run for lack of memory: it held "
            f"{peak_bytes / GIB:.1f} of {limit_of_memory() / GIB:.1f} GiB; {ways}\n"
        )


def _held_with_children(pid: int) -> int:
    """Return the resident bytes of a process and of all that it has started; memory that they share counts
    once in each.
    """
    parents: dict[int, int] = {}
    resident: dict[int, int] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            parents[int(folder.name)] = int(fields[1])
            resident[int(folder.name)] = int(fields[21]) * os.sysconf("SC_PAGE_SIZE")
        except (OSError, IndexError, ValueError):
            continue  # it has ended
    pids = {pid}
    pid_count = 0
    while len(pids) > pid_count:
        pid_count = len(pids)
        pids |= {child for child, parent in parents.items() if parent in pids}
    return sum(resident.get(member, 0) for member in pids)


if __name__ == "__main__":
    _watch(int(sys.argv[1]), sys.argv[2])
