"""Limits of control groups of both versions, wherever this process is in them, and what is said of a process
that the system killed for lack of memory; the latter in a real group with a limit, where the test may make
one.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.control_groups import inside, memory_group
from tests.house.source import ROOT
from verl.utils import host_memory

GIB = host_memory.GIB


def write(folder: Path, **files: object) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name.replace("__", ".")).write_text(f"{content}\n")


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in place of /sys/fs/cgroup and /proc/self/cgroup."""

    def groups() -> Iterator[object]:
        return made(tmp_path / "cgroup", tmp_path / "own")

    made = host_memory._groups
    monkeypatch.setattr(host_memory, "_groups", groups)
    return tmp_path


@pytest.mark.parametrize(
    ("own", "limits", "expected"),
    [
        ("0::/a/b", {"": "max", "a": 3 * GIB, "a/b": 2 * GIB}, 2 * GIB),
        ("0::/a/b", {"a": GIB, "a/b": "max"}, GIB),
        ("0::/", {"": GIB}, GIB),
        ("0::/of/the/machine", {"": GIB}, GIB),
        ("0::/../beside", {"": GIB}, GIB),
        ("0::/a", {"b": 1}, None),
        ("1:name=other:/", {"": GIB}, GIB),
    ],
)
def test_the_smallest_limit_of_the_groups_around_a_process_counts(
    machine: Path, own: str, limits: dict[str, object], expected: int | None
) -> None:
    (machine / "own").write_text(f"9:name=systemd:/x\n{own}\n")
    for path, limit in limits.items():
        write(
            machine / "cgroup" / path,
            memory__max=limit,
            memory__current=GIB // 4,
            memory__stat="inactive_file 0",
        )
    whole = psutil.virtual_memory()
    assert host_memory.limit_of_memory() == min(expected or whole.total, whole.total)
    if expected is not None:
        assert host_memory.free_memory() == min(expected - GIB // 4, psutil.virtual_memory().available)


def test_groups_of_the_first_version_count_too_with_the_pages_of_files_as_free(machine: Path) -> None:
    (machine / "own").write_text("4:memory,hugetlb:/run/one\n0::/\n")
    folder = machine / "cgroup" / "memory" / "run" / "one"
    write(
        folder,
        memory__limit_in_bytes=GIB,
        memory__usage_in_bytes=GIB // 2,
        memory__stat=f"inactive_file 0\ntotal_inactive_file {GIB // 8}\ntotal_active_file {GIB // 8}",
        memory__oom_control="oom_kill_disable 0\nunder_oom 0\noom_kill 10000000",
    )
    assert host_memory.free_memory() == 3 * GIB // 4
    assert host_memory.kills_for_memory() == (10_000_000, True)
    assert re.search(
        r"killed \d+ processes for lack of memory here since this one began, within 1.0 GiB",
        host_memory.note_of_kills(),
    )


@pytest.fixture
def group() -> Iterator[Path]:
    """A group of 400 MiB."""
    with memory_group(400 * 2**20) as folder:
        yield folder


PROGRAM = """
import os, sys
from verl.utils.host_memory import free_memory, kills_are_told, limit_of_memory
print(limit_of_memory() // 2**20, free_memory() // 2**20, flush=True)
with kills_are_told():
    held = []
    while len(held) < int(sys.argv[1]):
        held.append(bytearray(os.urandom(2**20)))
        if len(held) == int(sys.argv[2]):
            os.kill(os.getpid(), 9)
"""


@pytest.mark.parametrize(
    ("mebibytes", "killed_at", "told"), [(600, -1, True), (20, -1, False), (20, 10, False)]
)
def test_a_process_that_is_killed_for_memory_says_so_and_no_other(
    group: Path, mebibytes: int, killed_at: int, told: bool
) -> None:
    program = [sys.executable, "-c", PROGRAM, str(mebibytes), str(killed_at)]
    done = subprocess.run(inside(group, program), cwd=ROOT, capture_output=True, text=True, timeout=240)
    limit, free = map(int, done.stdout.split())
    assert limit == 400 and free < 400
    assert done.returncode == (0 if mebibytes == 20 and killed_at < 0 else -9)
    said = re.fullmatch(
        r"error: the system killed this run for lack of memory: it held (0\.\d) of 0\.4 GiB; lower \S+ or "
        r".*\n",
        done.stderr,
    )
    assert bool(said) is told, done.stderr
    if said:
        assert 0.2 < float(said[1]) <= 0.4
    else:
        assert done.stderr == ""
