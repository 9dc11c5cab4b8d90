"""System calls without a function in Python 3.11, through ctypes."""

from __future__ import annotations

import ctypes
import os
import platform
import signal

MACHINE = platform.machine()
CLONE_NUMBER = {"x86_64": 56, "aarch64": 220}
PIVOT_ROOT_NUMBER = {"x86_64": 155, "aarch64": 41}

CLONE_NEWNS = 0x00020000
CLONE_NEWCGROUP = 0x02000000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000
MS_RDONLY = 1
MS_NOSUID = 2
MS_NODEV = 4
MS_NOEXEC = 8
MS_REMOUNT = 32
MS_BIND = 4096
MS_REC = 16384
MS_PRIVATE = 1 << 18
MNT_DETACH = 2
PR_SET_PDEATHSIG = 1
PR_CAPBSET_DROP = 24
PR_SET_CHILD_SUBREAPER = 36
PR_SET_NO_NEW_PRIVS = 38
CAPABILITY_VERSION_3 = 0x20080522
LAST_CAPABILITY = 63
M_ARENA_MAX = -8
_CAPSET_HEADER = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION_3, 0)
_NO_CAPABILITIES = (ctypes.c_uint32 * 6)()

# PyDLL holds the interpreter's lock during a call: the single thread of a child made by `clone`
# must hold it.
_libc = ctypes.PyDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long
_ZERO = ctypes.c_ulong(0)


def _check(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def syscall(what: str, number: int, *arguments: int | bytes | ctypes.Array | ctypes._CData | None) -> int:
    """Make a system call. Raise OSError that begins with `what`."""
    typed = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    return _check(_libc.syscall(ctypes.c_long(number), *typed), what)


def prctl(what: str, option: int, argument: int = 0, pointer: ctypes.c_ulong = _ZERO) -> int:
    """Call prctl. Raise OSError that begins with `what`."""
    return _check(_libc.prctl(option, argument, pointer, _ZERO, _ZERO), what)


def share_heap() -> None:
    """Let all threads of a process allocate from one heap. Otherwise glibc reserves 64 MiB for each
    of them, which count as memory of a program.
    """
    if hasattr(_libc, "mallopt"):  # of glibc
        _libc.mallopt(M_ARENA_MAX, 1)


def fork() -> int:
    """Fork a single-threaded process without running the fork handlers of Python's modules.

    The handlers have no effect without other threads, and the memory pages they touch cost more
    than the fork. The caller reseeds random generators in the child.
    """
    if not hasattr(_libc, "_Fork"):  # glibc 2.34
        return os.fork()
    return _check(_libc._Fork(), "fork")


def clone(flags: int) -> int:
    """Fork into new namespaces. Raise OSError naming what the system refused."""
    if not flags:
        return fork()
    if MACHINE not in CLONE_NUMBER:
        raise OSError(f"namespaces are supported on {', '.join(CLONE_NUMBER)} only, not on {MACHINE}")
    return syscall(
        f"clone into new namespaces (flags {flags:#x})",
        CLONE_NUMBER[MACHINE],
        flags | signal.SIGCHLD,
        0,
        0,
        0,
        0,
    )


def mount(
    source: str, target: str, kind: str | None = None, flags: int = 0, options: str | None = None
) -> None:
    """Mount `source` on `target`. Raise OSError that names the target."""
    words = [source.encode(), target.encode(), kind.encode() if kind else None]
    result = _libc.mount(*words, ctypes.c_ulong(flags), options.encode() if options else None)
    _check(result, f"mount {kind or source} on {target}")


def unmount(target: str) -> None:
    """Unmount `target`, also when it is in use."""
    _check(_libc.umount2(target.encode(), MNT_DETACH), f"umount {target}")


def pivot_root(new: str, old: str) -> None:
    """Make `new` the root; the old root is then at `old`."""
    syscall(f"pivot_root {new}", PIVOT_ROOT_NUMBER[MACHINE], new.encode(), old.encode())


def set_host_name(name: str) -> None:
    """Set host and domain name in this host-name namespace."""
    for setter in (_libc.sethostname, _libc.setdomainname):
        _check(setter(name.encode(), ctypes.c_size_t(len(name))), "set the host's name")


def die_with_parent() -> None:
    """Get SIGKILL when the parent ends. A change of user or capabilities resets this."""
    prctl("PR_SET_PDEATHSIG", PR_SET_PDEATHSIG, signal.SIGKILL)


def never_gain_capabilities() -> None:
    """Prevent programs executed later from gaining capabilities, as any user; those held now stay."""
    for capability in range(LAST_CAPABILITY + 1):
        if _libc.prctl(PR_CAPBSET_DROP, ctypes.c_ulong(capability), *[ctypes.c_ulong(0)] * 3) < 0:
            # the kernel has no such capability, or this process may not drop it
            break


def drop_capabilities() -> None:
    """Drop every capability."""
    _check(_libc.capset(_CAPSET_HEADER, _NO_CAPABILITIES), "capset")


def no_new_privileges() -> None:
    """Prevent programs executed later from gaining privileges; an unprivileged process needs this
    for seccomp and Landlock.
    """
    prctl("PR_SET_NO_NEW_PRIVS", PR_SET_NO_NEW_PRIVS, 1)
