"""The filter of system calls: a list of what is allowed, assembled as classic BPF."""

from __future__ import annotations

import ctypes
import errno
import struct
from collections.abc import Iterable

from . import syscalls
from .kernel import CLONE_NEWCGROUP, CLONE_NEWIPC, CLONE_NEWNET, CLONE_NEWNS, CLONE_NEWPID, CLONE_NEWUSER, CLONE_NEWUTS, MACHINE, prctl

AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 22, 2
ALLOW, KILL, REFUSE = 0x7FFF0000, 0x80000000, 0x00050000
LOAD, JUMP_EQUAL, JUMP_GREATER_EQUAL, JUMP_ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
NUMBER, ARCHITECTURE, ARGUMENTS = 0, 4, 16
X32_BIT = 0x40000000
NAMESPACES = (
    CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNET
)  # CLONE_NEWTIME shares its bit with the exit signal of clone(2), which cannot ask for it
AF_UNIX = 1
# FIONREAD, FIONBIO, FIOCLEX, FIONCLEX: what Python itself asks of a file. Terminals are none here.
IOCTLS = (0x541B, 0x5421, 0x5451, 0x5450)
# PR_SET_NAME, PR_GET_NAME, PR_GET_DUMPABLE, PR_GET_NO_NEW_PRIVS
PRCTLS = (15, 16, 3, 39)
SIGNALLING = ("kill", "tkill", "tgkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo")


class Assembler:
    """Instructions of a filter; every check begins with the number of the call loaded and falls through when it does not apply."""

    def __init__(self) -> None:
        self.code: list[tuple[int, int, int, int]] = []

    def put(self, code: int, value: int, if_true: int = 0, if_false: int = 0) -> None:
        self.code.append((code, if_true, if_false, value))

    def answer(self, numbers: Iterable[int], verdict: int) -> None:
        """Answer these calls whatever their arguments are."""
        for number in sorted(numbers):
            self.put(JUMP_EQUAL, number, 0, 1)
            self.put(RETURN, verdict)

    def answer_by_argument(self, number: int, index: int, values: Iterable[int], otherwise: int) -> None:
        """Allow a call whose argument `index` (its low 32 bits) is one of `values`."""
        values = tuple(values)
        self.put(JUMP_EQUAL, number, 0, 2 * len(values) + 2)
        self.put(LOAD, ARGUMENTS + 8 * index)
        for value in values:
            self.put(JUMP_EQUAL, value, 0, 1)
            self.put(RETURN, ALLOW)
        self.put(RETURN, otherwise)

    def bytes(self) -> bytes:
        return b"".join(struct.pack("=HBBI", *instruction) for instruction in self.code)


def assemble(machine: str, signals: bool) -> bytes:
    """The filter of a machine of `AUDIT_ARCH`.

    Args:
        machine: `x86_64` or `aarch64`.
        signals: programs may send signals; False where nothing else keeps them from those of others.
    """
    judged = syscalls.numbers(syscalls.JUDGED, machine)
    refused = REFUSE | errno.EPERM
    a = Assembler()
    a.put(LOAD, ARCHITECTURE)
    a.put(JUMP_EQUAL, AUDIT_ARCH[machine], 1, 0)
    a.put(RETURN, KILL)
    a.put(LOAD, NUMBER)
    if machine == "x86_64":
        a.put(JUMP_GREATER_EQUAL, X32_BIT, 0, 1)
        a.put(RETURN, KILL)
    a.answer(syscalls.numbers(syscalls.ALLOWED, machine).values(), ALLOW)
    a.answer(syscalls.numbers(syscalls.REFUSED, machine).values(), refused)
    a.answer((judged[name] for name in SIGNALLING), ALLOW if signals else refused)
    a.put(JUMP_EQUAL, judged["clone"], 0, 4)
    a.put(LOAD, ARGUMENTS)
    a.put(JUMP_ANY_BIT, NAMESPACES, 0, 1)
    a.put(RETURN, refused)
    a.put(RETURN, ALLOW)
    a.answer_by_argument(judged["socketpair"], 0, (AF_UNIX,), refused)
    a.answer_by_argument(judged["ioctl"], 1, IOCTLS, REFUSE | errno.ENOTTY)
    a.answer_by_argument(judged["prctl"], 0, PRCTLS, refused)
    a.answer_by_argument(judged["prlimit64"], 0, (0,), refused)
    a.answer_by_argument(judged["sched_setaffinity"], 0, (0,), refused)
    a.put(RETURN, REFUSE | errno.ENOSYS)
    return a.bytes()


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def install(signals: bool) -> None:
    """Put the filter on this process and all it will start; it needs `no_new_privileges`. Raises OSError saying what is missing."""
    if MACHINE not in AUDIT_ARCH:
        raise OSError(f"the seccomp filter is written for {', '.join(AUDIT_ARCH)} and not for {MACHINE}")
    code = assemble(MACHINE, signals)
    program = _Program(len(code) // 8, code)
    prctl("seccomp filter", PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.addressof(program))
