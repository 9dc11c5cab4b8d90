"""The process that builds a worker's file system view and starts an init in it for every job; it
never sees a program.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable
from typing import NamedTuple, NoReturn

from . import frames, init, kernel, landlock, preload, program, scratch, seccomp, streams, view
from .confine import Confinement, confine, confine_worker, limit_job
from .kernel import CLONE_NEWIPC, CLONE_NEWNET, CLONE_NEWNS, CLONE_NEWPID, CLONE_NEWUSER, CLONE_NEWUTS
from .paths import reachable, search_path
from .place import RESULTS, JobContext, kill_below, kill_namespace

WORLD = CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS
JOB = CLONE_NEWPID | CLONE_NEWNS
# In a user namespace: the user of programs, and the user that prepares the view if root on the host
# started this process.
INSIDE = 1
PREPARING = 0


class Settings(NamedTuple):
    """Settings of a worker, sent by the trainer.

    Attributes:
        level: `namespaces`, `landlock`, `seccomp` or `rlimits`.
        stdlib: folder of the standard library.
        packages: file or folder name -> path on the host.
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
    """Values determined before any confinement.

    Attributes:
        uid: user of programs on the host if root started this process; None keeps the user.
        overhead_bytes: address space of this process.
    """

    uid: int | None
    overhead_bytes: int


def run(settings: Settings, host: Host, watch: int, alarm: int, go: int) -> NoReturn:
    """Run the warden: wait for `go`, build the view, report readiness, then run jobs until the
    trainer closes the channel.
    """
    try:
        # Closed without a word: the worker has ended before it mapped the users.
        if not os.read(go, 1):
            os._exit(1)
        os.close(go)
        kernel.die_with_parent()
        confine_worker()
        # so that no pipe of a program gets this number
        watch = os.dup2(watch, program.STATUS_FD)
        context = (
            _in_namespaces(settings, host, watch, alarm)
            if settings.namespaces
            else _on_the_host(settings, host, watch, alarm)
        )
        streams.open_all(context.streams)
        frames.write_frame(RESULTS, {"ready": True})
    except Exception as error:
        frames.write_frame(RESULTS, {"error": f"{type(error).__name__}: {error}"})
        os._exit(1)
    try:
        _run_jobs(settings, context)
    finally:
        os._exit(1)


def _run_jobs(settings: Settings, context: JobContext) -> NoReturn:
    while True:
        pid = kernel.clone(JOB if settings.namespaces else 0)
        if pid == 0:
            try:
                # Orphans of a program come to the job's init, as they do to the init of a
                # namespace.
                if not settings.namespaces:
                    kernel.prctl("PR_SET_CHILD_SUBREAPER", kernel.PR_SET_CHILD_SUBREAPER, 1)
                init.serve(context)
            # The child must never go on as a second warden.
            finally:
                os._exit(1)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if status != init.JOB_DONE:
            # The kernel ends a namespace with its init.
            if not settings.namespaces:
                kill_below()
            os._exit(0 if status == init.NO_MORE_JOBS else 1)


def _in_namespaces(settings: Settings, host: Host, watch: int, alarm: int) -> JobContext:
    separate = os.getuid() == PREPARING
    # A separate user has no other processes. Else the limit counts the warden and the init, before
    # Linux 5.14 all of the user's processes.
    counted = 0 if separate else 2 if _release() >= (5, 14) else None
    kernel.set_host_name("sandbox")
    program_streams = view.build(settings.stdlib, settings.packages)
    preload.relocate(
        {settings.stdlib: view.STDLIB, settings.shown: view.PACKAGES}, search_path(view.STDLIB, view.PACKAGES)
    )
    how = Confinement(
        namespaces=True,
        landlock=False,
        filter=_filter(signals=True, changes=True),
        uid=INSIDE if separate else None,
        readable=(),
        writable=(),
        counted=counted,
        overhead_bytes=host.overhead_bytes,
    )

    # one value per job, since each has a copy of this process
    mounted = False

    def clean(size_bytes: int) -> str:
        nonlocal mounted
        if not mounted or not view.tmp_is_empty():
            if mounted:
                kernel.unmount(view.TMP)
            view.mount_tmp(size_bytes, INSIDE, INSIDE)
            mounted = True
        view.reset_tmp()
        return view.TMP

    return JobContext(
        watch,
        alarm,
        (),
        program_streams,
        clean,
        functools.partial(limit_job, how),
        functools.partial(confine, how),
        kill_namespace,
        disk_is_bounded=True,
        processes_are_bounded=counted is not None,
    )


def _on_the_host(settings: Settings, host: Host, watch: int, alarm: int) -> JobContext:
    kernel.prctl("PR_SET_CHILD_SUBREAPER", kernel.PR_SET_CHILD_SUBREAPER, 1)
    # Programs of another user pass through it, but cannot list it.
    os.chmod(settings.scratch, 0o711)
    named = reachable(host.uid, {"": settings.stdlib, **settings.packages})
    keep = tuple(int(path.rpartition("/")[2]) for path in named.values() if path.startswith("/proc/self/fd/"))
    packages = os.path.join(settings.scratch, "packages")
    os.mkdir(packages)
    for name in settings.packages:
        os.symlink(named[name], os.path.join(packages, name))
    preload.relocate({settings.stdlib: named[""], settings.shown: packages}, search_path(named[""], packages))
    folder = os.path.join(settings.scratch, "run")
    os.mkdir(streams_folder := os.path.join(settings.scratch, "streams"))
    os.chmod(streams_folder, 0o755)
    program_streams = streams.make(streams_folder, streams_folder)
    landlocked = settings.level == "landlock"
    filtered = settings.level in ("landlock", "seccomp")
    separate = host.uid is not None
    owner = os.getuid() if host.uid is None else host.uid
    scoped = landlocked and landlock.scopes_signals()
    how = Confinement(
        namespaces=False,
        landlock=landlocked,
        filter=_filter(signals=scoped, changes=False) if filtered else None,
        uid=host.uid,
        readable=(
            *named.values(),
            packages,
            *(f"/dev/{name}" for name in view.DEVICES),
            program_streams.paths[0],
        ),
        writable=program_streams.paths[1:],
        counted=0 if separate else None,
        overhead_bytes=host.overhead_bytes,
    )

    def clean(size_bytes: int) -> str:
        scratch.remove(folder)
        os.mkdir(folder, 0o700)
        os.chown(folder, owner, -1)
        return folder

    return JobContext(
        watch,
        alarm,
        keep,
        program_streams,
        clean,
        functools.partial(limit_job, how),
        functools.partial(confine, how),
        kill_below,
        disk_is_bounded=False,
        processes_are_bounded=separate,
    )


def _filter(signals: bool, changes: bool) -> Callable[[], None]:
    """Install the worker's part of the filter; return a function that installs the rest for a
    program.
    """
    parts = seccomp.for_this_machine(signals, changes)
    seccomp.prepare(parts.worker)()
    return seccomp.prepare(parts.program)


def _release() -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", os.uname().release)[:2])
