"""The filter of system calls: a list of allowed calls, assembled as classic BPF.

The kernel compiles a filter and evaluates it for every call number when it is installed. The filter
is therefore short, finds the numbers by binary search, and has two parts: the first is installed
once for a worker and leaves `syscalls.STARTING` to it; the second, a few instructions about those
calls, is installed before every program. Of two answers the kernel takes the stricter one.
"""

from __future__ import annotations

import ctypes
import errno
import struct
from collections.abc import Callable, Iterable
from itertools import groupby
from typing import NamedTuple

from . import syscalls
from .kernel import (
    CLONE_NEWCGROUP,
    CLONE_NEWIPC,
    CLONE_NEWNET,
    CLONE_NEWNS,
    CLONE_NEWPID,
    CLONE_NEWUSER,
    CLONE_NEWUTS,
    MACHINE,
    prctl,
)

AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
PR_SET_SECCOMP = 22
SECCOMP_MODE_FILTER = 2
ALLOW = 0x7FFF0000
KILL = 0x80000000
FAIL = 0x00050000
LOAD = 0x20
JUMP = 0x05
JUMP_EQUAL = 0x15
JUMP_FROM = 0x35
JUMP_ANY_BIT = 0x45
RETURN = 0x06
# A conditional jump has one byte for each of its two offsets.
MAX_JUMP = 255
NUMBER = 0
ARCHITECTURE = 4
ARGUMENTS = 16
REFUSED, UNKNOWN, NO_TERMINAL, NO_MEMORY = (
    FAIL | number for number in (errno.EPERM, errno.ENOSYS, errno.ENOTTY, errno.ENOMEM)
)
# The call is not made and returns 0.
IGNORED = FAIL
NAMESPACES = (
    CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNET
)
AF_UNIX = 1
# SOCK_STREAM and SOCK_SEQPACKET, each with any of SOCK_NONBLOCK and SOCK_CLOEXEC. Not SOCK_DGRAM:
# such a socket of a pair can send to any named socket of the host.
SOCKETS = tuple(kind | flags for kind in (1, 5) for flags in (0, 0x800, 0x80000, 0x80800))
O_TRUNC = 0o1000
O_WRONLY = 1
O_RDWR = 2
MAP_SHARED = 1
MAP_ANONYMOUS = 0x20
# FIONREAD, FIONBIO, FIOCLEX, FIONCLEX, which Python itself uses on files. Requests to terminals
# answer "not a terminal".
IOCTLS = (0x541B, 0x5421, 0x5451, 0x5450)
# Duplication, flags, the size of a pipe (not F_SETPIPE_SZ: no memory limit counts a pipe's
# contents). F_SETOWN with F_SETSIG could send any signal to any process of the same user; for locks
# see `syscalls.REFUSED`.
FCNTLS = (0, 1, 2, 3, 4, 1030, 1032)
# PR_SET_NAME, PR_GET_NAME, PR_GET_DUMPABLE, PR_GET_NO_NEW_PRIVS
PRCTLS = (15, 16, 3, 39)
SIGNALLING = ("kill", "tkill", "tgkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo")

# (operation, value, instructions to skip when true, when false)
Code = list[tuple[int, int, int, int]]


class Filter(NamedTuple):
    """The two parts of the filter of programs.

    Attributes:
        worker: for the processes that start programs, and for programs.
        program: for programs only.
    """

    worker: bytes
    program: bytes


def assemble(machine: str, signals: bool, changes: bool) -> Filter:
    """Return the filter for a machine of `AUDIT_ARCH`.

    Args:
        machine: `x86_64` or `aarch64`. The x32 and 32-bit calls of x86-64 end the process.
        signals: programs may send signals; False where nothing else protects processes outside the
            sandbox from them.
        changes: programs may use `syscalls.FILE_CHANGES`; False where they can name files outside
            the sandbox.
    """
    by_arguments = syscalls.numbers(syscalls.BY_ARGUMENTS, machine)
    answers: dict[int, Code] = {}
    for table, verdict in (
        (syscalls.ALLOWED, ALLOW),
        (syscalls.IGNORED, IGNORED),
        (syscalls.FILE_CHANGES, ALLOW if changes else REFUSED),
        (syscalls.REFUSED, REFUSED),
    ):
        answers |= dict.fromkeys(syscalls.numbers(table, machine).values(), _answer(verdict))
    answers |= {by_arguments[name]: _answer(ALLOW if signals else REFUSED) for name in SIGNALLING}
    answers[by_arguments["clone"]] = [
        (LOAD, ARGUMENTS, 0, 0),
        (JUMP_ANY_BIT, NAMESPACES, 0, 1),
        *_answer(REFUSED),
        *_answer(ALLOW),
    ]
    answers[by_arguments["socketpair"]] = [
        (LOAD, ARGUMENTS, 0, 0),
        (JUMP_EQUAL, AF_UNIX, 1, 0),
        *_answer(REFUSED),
        *_answer_by(1, SOCKETS, REFUSED),
    ]
    # Anonymous shared memory can outlive its mappings, and only root can see its size.
    answers[by_arguments["mmap"]] = [
        (LOAD, ARGUMENTS + 8 * 3, 0, 0),
        (JUMP_ANY_BIT, MAP_SHARED, 0, 1),
        (JUMP_ANY_BIT, MAP_ANONYMOUS, 1, 0),
        *_answer(ALLOW),
        *_answer(NO_MEMORY),
    ]
    for name, index in (("open", 1), ("openat", 2)):
        if name in by_arguments:
            answers[by_arguments[name]] = _answer(ALLOW) if changes else _answer_open(index)
    answers[by_arguments["ioctl"]] = _answer_by(1, IOCTLS, NO_TERMINAL)
    answers[by_arguments["fcntl"]] = _answer_by(1, FCNTLS, REFUSED)
    answers[by_arguments["prctl"]] = _answer_by(0, PRCTLS, REFUSED)
    answers[by_arguments["prlimit64"]] = answers[by_arguments["sched_setaffinity"]] = _answer_by(
        0, (0,), REFUSED
    )
    starting = set(syscalls.numbers(syscalls.STARTING, machine).values())
    return Filter(
        _assemble(machine, answers | dict.fromkeys(starting, _answer(ALLOW)), UNKNOWN),
        _assemble(machine, {number: answers[number] for number in starting}, ALLOW),
    )


def _assemble(machine: str, answers: dict[int, Code], otherwise: int) -> bytes:
    """Return a filter from its answers by number; calls of another machine or kind end the process."""
    stop = max(answers) + 1
    numbered = [(number, answers.get(number, _answer(otherwise))) for number in range(stop)]
    ranges = [(next(members)[0], answer) for answer, members in groupby(numbered, key=lambda pair: pair[1])]
    search = _search([*ranges, (stop, _answer(otherwise)), (1 << 30, _answer(KILL))])
    start: Code = [
        (LOAD, ARCHITECTURE, 0, 0),
        (JUMP_EQUAL, AUDIT_ARCH[machine], 1, 0),
        *_answer(KILL),
        (LOAD, NUMBER, 0, 0),
    ]
    return b"".join(struct.pack("=HBBI", code, yes, no, value) for code, value, yes, no in start + search)


def _search(ranges: list[tuple[int, Code]]) -> Code:
    """Return code that finds the last range that begins at the loaded number or below it."""
    if len(ranges) == 1:
        return ranges[0][1]
    middle = len(ranges) // 2
    below = _search(ranges[:middle])
    above = _search(ranges[middle:])
    first = ranges[middle][0]
    if len(below) <= MAX_JUMP:
        return [(JUMP_FROM, first, len(below), 0), *below, *above]
    return [(JUMP_FROM, first, 0, 1), (JUMP, len(below), 0, 0), *below, *above]


def _answer(verdict: int) -> Code:
    return [(RETURN, verdict, 0, 0)]


def _answer_by(index: int, values: Iterable[int], otherwise: int) -> Code:
    """Return code that allows a call whose argument `index` (its low 32 bits) is one of `values`."""
    code: Code = [(LOAD, ARGUMENTS + 8 * index, 0, 0)]
    for value in values:
        code += [(JUMP_EQUAL, value, 0, 1), *_answer(ALLOW)]
    return code + _answer(otherwise)


def _answer_open(index: int) -> Code:
    """Return code that refuses O_TRUNC without write access, which Landlock allows before Linux
    6.2; argument `index` has the flags.
    """
    return [
        (LOAD, ARGUMENTS + 8 * index, 0, 0),
        (JUMP_ANY_BIT, O_TRUNC, 0, 3),
        (JUMP_ANY_BIT, O_WRONLY, 0, 1),
        (JUMP_ANY_BIT, O_RDWR, 2, 1),  # both: neither reading nor writing
        (JUMP_ANY_BIT, O_RDWR, 0, 1),
        *_answer(ALLOW),
        *_answer(REFUSED),
    ]


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def prepare(code: bytes) -> Callable[[], None]:
    """Return a function that installs a filter for the calling process and its descendants; needs
    `no_new_privileges`.

    The function raises OSError where the kernel has no filters.
    """
    program = _Program(len(code) // 8, code)
    address = ctypes.c_ulong(ctypes.addressof(program))

    # the default keeps the structure at `address` alive
    def install(program: _Program = program) -> None:
        prctl("seccomp filter", PR_SET_SECCOMP, SECCOMP_MODE_FILTER, address)

    return install


def for_this_machine(signals: bool, changes: bool) -> Filter:
    """Return the filter for this machine. Raise OSError if it is not supported."""
    if MACHINE not in AUDIT_ARCH:
        raise OSError(f"the seccomp filter supports {', '.join(AUDIT_ARCH)} only, not {MACHINE}")
    return assemble(MACHINE, signals, changes)
