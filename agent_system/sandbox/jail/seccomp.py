"""The filter of system calls: a list of what is allowed, assembled as classic BPF.

The kernel compiles a new filter and evaluates it for every call number when it is installed, which happens before every program, so it is
short, and the numbers are found by binary search and not one after the other.
"""

from __future__ import annotations

import ctypes
import errno
import struct
from collections.abc import Callable, Iterable
from itertools import groupby

from . import syscalls
from .kernel import CLONE_NEWCGROUP, CLONE_NEWIPC, CLONE_NEWNET, CLONE_NEWNS, CLONE_NEWPID, CLONE_NEWUSER, CLONE_NEWUTS, MACHINE, prctl

AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 22, 2
ALLOW, KILL, FAIL = 0x7FFF0000, 0x80000000, 0x00050000
LOAD, JUMP, JUMP_EQUAL, JUMP_FROM, JUMP_ANY_BIT, RETURN = 0x20, 0x05, 0x15, 0x35, 0x45, 0x06
# A conditional jump has a byte for each of its two ways.
MOST_SKIPPED = 255
NUMBER, ARCHITECTURE, ARGUMENTS = 0, 4, 16
REFUSED, UNKNOWN, NO_TERMINAL, NO_MEMORY = (FAIL | number for number in (errno.EPERM, errno.ENOSYS, errno.ENOTTY, errno.ENOMEM))
# The call is not made, and its answer is 0.
IGNORED = FAIL
NAMESPACES = CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNET
AF_UNIX = 1
# Streams and sequences of packets, each with any of SOCK_NONBLOCK and SOCK_CLOEXEC. One of a pair of datagram sockets can send to any other
# socket of the host by its name.
SOCKETS = tuple(kind | flags for kind in (1, 5) for flags in (0, 0x800, 0x80000, 0x80800))
O_TRUNC, O_WRONLY, O_RDWR = 0o1000, 1, 2
MAP_SHARED, MAP_ANONYMOUS = 1, 0x20
# FIONREAD, FIONBIO, FIOCLEX, FIONCLEX: what Python itself asks of a file. Terminals are none here.
IOCTLS = (0x541B, 0x5421, 0x5451, 0x5450)
# Duplicating, flags, the size of a pipe (not F_SETPIPE_SZ: what it holds is in no limit of memory). F_SETOWN with F_SETSIG would send any
# signal to any process of the same user; for locks see `syscalls.REFUSED`.
FCNTLS = (0, 1, 2, 3, 4, 1030, 1032)
# PR_SET_NAME, PR_GET_NAME, PR_GET_DUMPABLE, PR_GET_NO_NEW_PRIVS
PRCTLS = (15, 16, 3, 39)
SIGNALLING = ("kill", "tkill", "tgkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo")

# (operation, value, instructions to skip when true, when false)
Code = list[tuple[int, int, int, int]]


def assemble(machine: str, signals: bool, changes: bool) -> bytes:
    """The filter of a machine of `AUDIT_ARCH`.

    Args:
        machine: `x86_64` or `aarch64`. The x32 and 32-bit calls of x86-64 end the process.
        signals: programs may send signals; False where nothing else keeps them from the processes of others.
        changes: programs may make `syscalls.FILE_CHANGES`; False where they can name files of others.
    """
    judged = syscalls.numbers(syscalls.JUDGED, machine)
    answers: dict[int, Code] = {}
    for table, verdict in (
        (syscalls.ALLOWED, ALLOW),
        (syscalls.IGNORED, IGNORED),
        (syscalls.FILE_CHANGES, ALLOW if changes else REFUSED),
        (syscalls.REFUSED, REFUSED),
    ):
        answers |= dict.fromkeys(syscalls.numbers(table, machine).values(), _answer(verdict))
    answers |= {judged[name]: _answer(ALLOW if signals else REFUSED) for name in SIGNALLING}
    answers[judged["clone"]] = [(LOAD, ARGUMENTS, 0, 0), (JUMP_ANY_BIT, NAMESPACES, 0, 1), *_answer(REFUSED), *_answer(ALLOW)]
    answers[judged["socketpair"]] = [
        (LOAD, ARGUMENTS, 0, 0),
        (JUMP_EQUAL, AF_UNIX, 1, 0),
        *_answer(REFUSED),
        *_answer_by(1, SOCKETS, REFUSED),
    ]
    # Shared memory without a file stays when it is in the address space of nobody, and only root can see how much there is.
    answers[judged["mmap"]] = [
        (LOAD, ARGUMENTS + 8 * 3, 0, 0),
        (JUMP_ANY_BIT, MAP_SHARED, 0, 1),
        (JUMP_ANY_BIT, MAP_ANONYMOUS, 1, 0),
        *_answer(ALLOW),
        *_answer(NO_MEMORY),
    ]
    for name, index in (("open", 1), ("openat", 2)):
        if name in judged:
            answers[judged[name]] = _answer(ALLOW) if changes else _answer_open(index)
    answers[judged["ioctl"]] = _answer_by(1, IOCTLS, NO_TERMINAL)
    answers[judged["fcntl"]] = _answer_by(1, FCNTLS, REFUSED)
    answers[judged["prctl"]] = _answer_by(0, PRCTLS, REFUSED)
    answers[judged["prlimit64"]] = answers[judged["sched_setaffinity"]] = _answer_by(0, (0,), REFUSED)
    known = max(answers) + 1
    numbered = [(number, answers.get(number, _answer(UNKNOWN))) for number in range(known)]
    ranges = [(next(members)[0], answer) for answer, members in groupby(numbered, key=lambda pair: pair[1])]
    search = _search([*ranges, (known, _answer(UNKNOWN)), (1 << 30, _answer(KILL))])
    start: Code = [(LOAD, ARCHITECTURE, 0, 0), (JUMP_EQUAL, AUDIT_ARCH[machine], 1, 0), *_answer(KILL), (LOAD, NUMBER, 0, 0)]
    return b"".join(struct.pack("=HBBI", code, yes, no, value) for code, value, yes, no in start + search)


def _search(ranges: list[tuple[int, Code]]) -> Code:
    """Find the last range that begins at the loaded number or below it."""
    if len(ranges) == 1:
        return ranges[0][1]
    middle = len(ranges) // 2
    below, above = _search(ranges[:middle]), _search(ranges[middle:])
    first = ranges[middle][0]
    if len(below) <= MOST_SKIPPED:
        return [(JUMP_FROM, first, len(below), 0), *below, *above]
    return [(JUMP_FROM, first, 0, 1), (JUMP, len(below), 0, 0), *below, *above]


def _answer(verdict: int) -> Code:
    return [(RETURN, verdict, 0, 0)]


def _answer_by(index: int, values: Iterable[int], otherwise: int) -> Code:
    """Allow a call whose argument `index` (its low 32 bits) is one of `values`."""
    code: Code = [(LOAD, ARGUMENTS + 8 * index, 0, 0)]
    for value in values:
        code += [(JUMP_EQUAL, value, 0, 1), *_answer(ALLOW)]
    return code + _answer(otherwise)


def _answer_open(index: int) -> Code:
    """Refuse O_TRUNC without the right to write, which Landlock lets pass before Linux 6.2; argument `index` holds the flags."""
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
    """A function that puts a filter on the calling process and all it will start; it needs `no_new_privileges`.

    The function raises OSError where the kernel has no filters.
    """
    program = _Program(len(code) // 8, code)
    address = ctypes.c_ulong(ctypes.addressof(program))

    def install(program: _Program = program) -> None:  # the default keeps alive what the address is of
        prctl("seccomp filter", PR_SET_SECCOMP, SECCOMP_MODE_FILTER, address)

    return install


def for_this_machine(signals: bool, changes: bool) -> bytes:
    """`assemble` for the machine at hand. Raises OSError when it is none of those known."""
    if MACHINE not in AUDIT_ARCH:
        raise OSError(f"the seccomp filter is written for {', '.join(AUDIT_ARCH)} and not for {MACHINE}")
    return assemble(MACHINE, signals, changes)
