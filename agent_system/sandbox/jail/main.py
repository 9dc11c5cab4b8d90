"""The process that the trainer starts: it starts the warden, then watches from outside the memory
and disk use of programs.

python -S -s -c "... from jail.main import main; main()"      # commands on stdin, results on stdout
"""

from __future__ import annotations

import gc
import os
import select
import sys
from contextlib import suppress

from . import frames, kernel, preload, scratch, tree, warden
from .place import ALARM, COMMANDS, RESULTS, WATCH, kill_below

LOOK_EVERY_S = 0.05
# User ids that no system assigns: one per worker, so that the processes of different workers are
# counted separately.
FIRST_UID = 1_500_000_000


def main() -> None:
    """Run a worker until the trainer closes its stdin or ends."""
    header, _ = frames.read_frame(COMMANDS)
    settings = warden.Settings(**{**header["settings"], "imports": tuple(header["settings"]["imports"])})
    try:
        sys.path.append(settings.shown)
        preload.preload(settings.imports)
        os.environ.clear()
        # When memory is exhausted, the kernel is to kill a program and not the trainer.
        with suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
            file.write("1000")
        watch, alarm = _start(settings)
    except Exception as error:
        frames.write_frame(RESULTS, {"error": f"{type(error).__name__}: {error}"})
        return
    # From here on the warden alone talks to the trainer.
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, COMMANDS)
    os.dup2(nowhere, RESULTS)
    try:
        _watch(watch, alarm, settings)
        os.wait()
    finally:
        if not settings.namespaces:
            kill_below()
        scratch.remove(settings.scratch)  # the trainer may have ended


def _start(settings: warden.Settings) -> tuple[int, int]:
    """Start the warden and return the descriptors from and to the job's init."""
    uid = FIRST_UID + os.getpid() if os.geteuid() == 0 else None
    host = warden.Host(uid, _address_space_bytes())
    (watch, watch_end), (alarm_end, alarm), (go_end, go) = os.pipe(), os.pipe(), os.pipe()
    # Forks share the pages of this process as long as the collector does not write to them.
    gc.collect()
    gc.freeze()
    if not settings.namespaces:
        kernel.prctl("PR_SET_CHILD_SUBREAPER", kernel.PR_SET_CHILD_SUBREAPER, 1)
    pid = kernel.clone(warden.WORLD if settings.namespaces else 0)
    if pid == 0:
        for fd in (watch, alarm, go):
            os.close(fd)
        warden.run(settings, host, watch_end, alarm_end, go_end)  # does not return
    for fd in (watch_end, alarm_end, go_end):
        os.close(fd)
    if settings.namespaces:
        _map_users(pid, uid)
    os.write(go, b"!")
    os.close(go)
    # Tests that do not read their alarms must not stop the watcher.
    os.set_blocking(alarm, False)
    return watch, alarm


def _map_users(pid: int, uid: int | None) -> None:
    """Map the users of the warden's user namespace: root and a separate user if this process is
    root, else only its own user.
    """
    if uid is None:
        # The kernel requires it of a user who is not root before groups are mapped.
        _write(pid, "setgroups", "deny")
    for name, host_id in (("gid_map", os.getegid()), ("uid_map", os.geteuid())):
        _write(
            pid,
            name,
            f"{warden.INSIDE} {host_id} 1"
            if uid is None
            else f"{warden.PREPARING} {host_id} 1\n{warden.INSIDE} {uid} 1",
        )


def _write(pid: int, name: str, text: str) -> None:
    with open(f"/proc/{pid}/{name}", "w") as file:
        file.write(text)


def _address_space_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[0]) * os.sysconf("SC_PAGESIZE")


def _watch(watch: int, alarm: int, settings: warden.Settings) -> None:
    """Measure the processes of the running test, and send its init an alarm when they exceed a
    limit; return when the warden ends.
    """
    poller = select.poll()
    poller.register(watch, select.POLLIN)
    number = memory = disk = processes = 0
    folder = os.path.join(settings.scratch, "run")
    while True:
        if poller.poll(LOOK_EVERY_S * 1000 if number else None):
            data = os.read(watch, WATCH.size)
            if not data:
                return
            number, memory, disk, processes = WATCH.unpack(data)
            continue
        used, running = _usage()
        exceeded = {
            b"m": used > memory,
            b"p": running > processes > 0,
            b"d": disk and scratch.used_bytes(folder) > disk,
        }
        for what in [what for what, over in exceeded.items() if over][:1]:
            with suppress(BlockingIOError, BrokenPipeError):
                os.write(alarm, ALARM.pack(number, what))


def _usage() -> tuple[int, int]:
    """Return the memory of the test's processes in bytes, beyond the memory each started with, and
    their number, threads included.
    """
    warden_pid = tree.children(os.getpid())[:1]
    job = [pid for parent in warden_pid for pid in tree.children(parent)[:1]]
    base = sum(tree.memory_bytes(pid) for pid in job)
    running = [pid for parent in job for pid in tree.descendants(parent)]
    return sum(max(0, tree.memory_bytes(pid) - base) for pid in running), sum(
        tree.threads(pid) for pid in running
    )
