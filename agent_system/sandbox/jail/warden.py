"""The process that holds a worker's view of the world and starts an init in it for every job; it never sees a program."""

from __future__ import annotations

import functools
import os
import re
from typing import NamedTuple, NoReturn

from . import frames, init, kernel, landlock, preload, program, scratch, seccomp, view
from .confine import Confinement, confine, confine_worker, limit_job
from .kernel import CLONE_NEWIPC, CLONE_NEWNET, CLONE_NEWNS, CLONE_NEWPID, CLONE_NEWUSER, CLONE_NEWUTS
from .paths import reachable, search_path
from .place import RESULTS, Place, kill_below, kill_namespace

WORLD = CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS
JOB = CLONE_NEWPID | CLONE_NEWNS
# The user that a program is in a user namespace, and the one that prepares its view where the host's root started us.
INSIDE, PREPARING = 1, 0


class Settings(NamedTuple):
    """What the trainer asks of a worker.

    Attributes:
        level: `namespaces`, `landlock`, `seccomp` or `rlimits`.
        stdlib: folder of the standard library.
        packages: file or folder name to its path on the host.
        imports: packages to import.
        shown: folder on the host with a link to each of `packages`.
        scratch: folder on the host for this worker; unused with namespaces.
    """

    level: str
    stdlib: str
    packages: dict[str, str]
    imports: tuple[str, ...]
    shown: str
    scratch: str

    @property
    def namespaces(self) -> bool:
        return self.level == "namespaces"


class Host(NamedTuple):
    """What is measured before anything is taken away.

    Attributes:
        uid: user on the host that programs are, chosen where root started us; None leaves them ours.
        overhead_bytes: address space of this process.
    """

    uid: int | None
    overhead_bytes: int


def run(settings: Settings, host: Host, watch: int, alarm: int, go: int) -> NoReturn:
    """Be the warden: wait for `go`, build the view, say that it is ready, then run jobs until the trainer closes the channel."""
    try:
        if not os.read(go, 1):
            os._exit(1)
        os.close(go)
        kernel.die_with_parent()
        program.open_streams()
        confine_worker()
        watch = os.dup2(watch, program.SAY)  # so that no pipe of a program gets this number
        place = _in_namespaces(settings, host, watch, alarm) if settings.namespaces else _on_the_host(settings, host, watch, alarm)
        frames.write_frame(RESULTS, {"ready": True})
    except Exception as error:
        frames.write_frame(RESULTS, {"error": f"{type(error).__name__}: {error}"})
        os._exit(1)
    try:
        _run_jobs(settings, place)
    finally:
        os._exit(1)


def _run_jobs(settings: Settings, place: Place) -> NoReturn:
    while True:
        pid = kernel.clone(JOB if settings.namespaces else 0)
        if pid == 0:
            try:
                if not settings.namespaces:
                    kernel.prctl("PR_SET_CHILD_SUBREAPER", kernel.PR_SET_CHILD_SUBREAPER, 1)
                init.serve(place)
            finally:
                os._exit(1)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if status != init.JOB_DONE:
            if not settings.namespaces:
                kill_below()
            os._exit(0 if status == init.NO_MORE_JOBS else 1)


def _in_namespaces(settings: Settings, host: Host, watch: int, alarm: int) -> Place:
    apart = os.getuid() == PREPARING
    # A user of its own has no other processes. Else the warden and the init are counted, before Linux 5.14 all of the user's on the host.
    counted = 0 if apart else 2 if _release() >= (5, 14) else None
    kernel.set_host_name("sandbox")
    view.build(settings.stdlib, settings.packages)
    preload.relocate({settings.stdlib: view.STDLIB, settings.shown: view.PACKAGES}, search_path(view.STDLIB, view.PACKAGES))
    how = Confinement(
        namespaces=True,
        landlock=False,
        filter=seccomp.prepare(seccomp.for_this_machine(signals=True, changes=True)),
        uid=INSIDE if apart else None,
        readable=(),
        counted=counted,
        overhead_bytes=host.overhead_bytes,
    )

    mounted = False  # of each job, which has a copy of this process

    def clean(size_bytes: int) -> str:
        nonlocal mounted
        if not mounted or not view.tmp_is_empty():
            if mounted:
                kernel.unmount(view.TMP)
            view.mount_tmp(size_bytes, INSIDE, INSIDE)
            mounted = True
        view.reset_tmp()
        return view.TMP

    return Place(
        watch,
        alarm,
        (),
        clean,
        functools.partial(limit_job, how),
        functools.partial(confine, how),
        kill_namespace,
        disk_is_bounded=True,
        processes_are_bounded=counted is not None,
    )


def _on_the_host(settings: Settings, host: Host, watch: int, alarm: int) -> Place:
    kernel.prctl("PR_SET_CHILD_SUBREAPER", kernel.PR_SET_CHILD_SUBREAPER, 1)
    os.chmod(settings.scratch, 0o711)
    named = reachable(host.uid, {"": settings.stdlib, **settings.packages})
    keep = tuple(int(path.rpartition("/")[2]) for path in named.values() if path.startswith("/proc/self/fd/"))
    packages = os.path.join(settings.scratch, "packages")
    os.mkdir(packages)
    for name in settings.packages:
        os.symlink(named[name], os.path.join(packages, name))
    preload.relocate({settings.stdlib: named[""], settings.shown: packages}, search_path(named[""], packages))
    folder = os.path.join(settings.scratch, "run")
    landlocked, filtered = settings.level == "landlock", settings.level in ("landlock", "seccomp")
    apart, owner = host.uid is not None, os.getuid() if host.uid is None else host.uid
    scoped = landlocked and landlock.scopes_signals()
    how = Confinement(
        namespaces=False,
        landlock=landlocked,
        filter=seccomp.prepare(seccomp.for_this_machine(signals=scoped, changes=False)) if filtered else None,
        uid=host.uid,
        readable=(*named.values(), packages, *(f"/dev/{name}" for name in view.DEVICES)),
        counted=0 if apart else None,
        overhead_bytes=host.overhead_bytes,
    )

    def clean(size_bytes: int) -> str:
        scratch.remove(folder)
        os.mkdir(folder, 0o700)
        os.chown(folder, owner, -1)
        return folder

    return Place(
        watch,
        alarm,
        keep,
        clean,
        functools.partial(limit_job, how),
        functools.partial(confine, how),
        kill_below,
        disk_is_bounded=False,
        processes_are_bounded=apart,
    )


def _release() -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", os.uname().release)[:2])
