"""Landlock: restricts a process to paths that it may read or write."""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Sequence

from .kernel import syscall

CREATE_RULESET = 444
ADD_RULE = 445
RESTRICT_SELF = 446
ASK_VERSION = 1
PATH_BENEATH = 1
EXECUTE = 1
WRITE_FILE = 2
READ_FILE = 4
READ_DIR = 8
REMOVE_DIR = 1 << 4
REMOVE_FILE = 1 << 5
MAKE_DIR = 1 << 7
MAKE_REG = 1 << 8
MAKE_SYM = 1 << 12
TRUNCATE = 1 << 14
# Rights known to each version: 13 file rights, then REFER, TRUNCATE, (network), IOCTL_DEV.
FILE_RIGHTS = (0, (1 << 13) - 1, (1 << 14) - 1, (1 << 15) - 1, (1 << 15) - 1, (1 << 16) - 1)
SCOPED_FROM = 6
SCOPE_ABSTRACT_UNIX = 1
SCOPE_SIGNAL = 2
READ = READ_FILE | READ_DIR
WRITE = READ | WRITE_FILE | REMOVE_DIR | REMOVE_FILE | MAKE_DIR | MAKE_REG | MAKE_SYM | TRUNCATE


def version() -> int:
    """Return Landlock's ABI version on this kernel. Raise OSError when the kernel has no Landlock."""
    return syscall(
        "Landlock (Linux 5.13 or newer, `lsm=landlock` among the boot options)",
        CREATE_RULESET,
        None,
        0,
        ASK_VERSION,
    )


def scopes_signals() -> bool:
    """Return whether signals to processes outside are refused too (Linux 6.12)."""
    return version() >= SCOPED_FROM


def restrict(readable: Sequence[str], writable: Sequence[str]) -> None:
    """Restrict this process and its descendants to these paths; needs `no_new_privileges`.

    Args:
        readable: folders and files that may be read.
        writable: folders and files that may be read and written.
    """
    abi_version = version()
    rights = FILE_RIGHTS[min(abi_version, len(FILE_RIGHTS) - 1)]
    scope = SCOPE_ABSTRACT_UNIX | SCOPE_SIGNAL if abi_version >= SCOPED_FROM else 0
    # Fields: file rights, network rights, scope. Kernels that do not know the later ones reject
    # them.
    attributes = (
        struct.pack("=QQQ", rights, 0, scope) if abi_version >= SCOPED_FROM else struct.pack("=Q", rights)
    )
    ruleset = syscall("landlock_create_ruleset", CREATE_RULESET, attributes, len(attributes), 0)
    for path, allowed in (*((path, READ) for path in readable), *((path, WRITE) for path in writable)):
        _allow(ruleset, path, allowed & rights)
    syscall("landlock_restrict_self", RESTRICT_SELF, ruleset, 0)
    os.close(ruleset)


def _allow(ruleset: int, path: str, allowed: int) -> None:
    beneath = os.open(path, os.O_PATH | os.O_CLOEXEC)
    # For a file the kernel takes no rights of folders.
    if not os.path.isdir(path):
        allowed &= READ_FILE | WRITE_FILE | TRUNCATE | EXECUTE
    rule = ctypes.create_string_buffer(struct.pack("=Qi", allowed, beneath))
    syscall(f"landlock_add_rule {path}", ADD_RULE, ruleset, PATH_BENEATH, rule, 0)
    os.close(beneath)
