"""Memory of the machine and of the control groups that this process is in, and what the system
kills for lack of it.

The kernel kills a process without a word when a control group or the machine has no memory left.
`kills_are_told` starts a second process of a few MiB, which outlives the run and writes the cause
and what the run held.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

GIB = 2**30
CGROUPS = Path("/sys/fs/cgroup")
# A script, which imports nothing of ours.
_WATCHER = Path(__file__).with_name("memory_watch.py")
_WAYS = (
    "lower actor_rollout_ref.actor.ppo_max_token_len_per_gpu or "
    "actor_rollout_ref.rollout.max_num_seqs, use adapters (agent.specialization=lora), or free "
    "memory"
)


@dataclass(frozen=True)
class _Version:
    """Names of one version of control groups: folder below `CGROUPS`, entry of /proc/self/cgroup,
    files.
    """

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
    """Yield the folders of this process's memory groups and of all groups around them, which limit
    it too.
    """
    try:
        entries = [line.split(":", 2) for line in cgroup_file.read_text().splitlines()]
    except OSError:
        entries = []
    for version in _VERSIONS:
        paths = [path for _, names, path in entries if version.entry in names.split(",")]
        folder = root / version.folder
        # In a container without a name space of its own the path is one of the machine: parts of it
        # are missing.
        inner = folder / (paths[0] if paths else "").lstrip("/")
        while True:
            if (inner / version.limit).is_file():
                yield version, inner
            if inner == folder:
                break
            inner = inner.parent


def free_memory() -> int:
    """Return the bytes of host memory that this process and those it starts can have: what is free,
    within the limits of its control groups.
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
    """Return the smallest limit of this process's control groups, or the machine's memory, in
    bytes.
    """
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for version, folder in _groups():
        try:
            limits.append(int((folder / version.limit).read_text()))
        except (OSError, ValueError):
            continue
    return min(limits)


def _with_inner(stat: Mapping[str, int], name: str) -> int:
    """Return a number of memory.stat with that of inner groups, which usage contains in both
    versions.
    """
    return stat.get(f"total_{name}", stat.get(name, 0))


def kills_for_memory() -> tuple[int, bool]:
    """Return how many processes the kernel has killed for lack of memory in this process's control
    group, or on the machine where no group says it, and whether the group says it.
    """
    file, of_group = _kill_counter()
    return _numbers(file).get("oom_kill", 0), of_group


def _kill_counter() -> tuple[Path, bool]:
    """Return the file that counts these kills, and whether it is of a control group."""
    for version, folder in _groups():
        if "oom_kill" in _numbers(folder / version.events):
            return folder / version.events, True
    return Path("/proc/vmstat"), False


_KILLS_BEFORE, _ = kills_for_memory()


def note_of_kills() -> str:
    """Return what to add to the error of a process that died; empty if none on this machine was
    killed for lack of memory since this module was imported.
    """
    kills, of_group = kills_for_memory()
    count = kills - _KILLS_BEFORE
    if count <= 0:
        return ""
    return (
        f" (the system has killed {count} {'process' if count == 1 else 'processes'} for lack of "
        f"memory {'here' if of_group else 'on this machine, of this run or another,'} since this "
        f"one began, within {limit_of_memory() / GIB:.1f} GiB: {_WAYS})"
    )


@contextmanager
def kills_are_told(ways: str = _WAYS) -> Iterator[None]:
    """Have another process say on stderr that the kernel killed this one for lack of memory, what
    it held, and the ways out.
    """
    file, of_group = _kill_counter()
    arguments = (os.getpid(), ways, file, int(of_group), limit_of_memory())
    command = [sys.executable, "-IS", str(_WATCHER), *map(str, arguments)]
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
        watcher.stdin.write(b"ended")
        watcher.stdin.close()
    except OSError:
        pass  # it was killed
    try:
        watcher.wait(timeout=5)
    except subprocess.TimeoutExpired:
        watcher.kill()
        watcher.wait()
