"""The file system that a program sees in a mount namespace: library, packages, three devices, its
streams and an empty /tmp.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from . import kernel, streams
from .kernel import MS_BIND, MS_NODEV, MS_NOEXEC, MS_NOSUID, MS_PRIVATE, MS_RDONLY, MS_REC, MS_REMOUNT

STDLIB = "/usr/lib/python"
PACKAGES = "/usr/lib/packages"
TMP = "/tmp"
# Not /dev/zero: a shared writable mapping of it is memory that no limit counts.
DEVICES = ("null", "random", "urandom")
# The streams have a file system of their own, since their input may be larger than anything else.
STREAMS = "/run"
STREAM_BYTES = 80 << 20
# Linux has the names of a process's descriptors here; there is no other entry of /proc.
DESCRIPTORS = "/proc/self/fd"
TMP_MODE = 0o700
STAGE = "/tmp"
# Folders of installed packages inside the standard library; they are hidden.
FOREIGN = ("site-packages", "dist-packages")
PLAIN = MS_NOSUID | MS_NODEV


def build(stdlib: str, packages: Mapping[str, str]) -> streams.Streams:
    """Replace the root of this mount namespace and return the streams of programs.

    Everything but /tmp is read-only afterwards, and no other file of the host is visible.

    Args:
        stdlib: folder of the standard library on the host.
        packages: name in `PACKAGES` -> file or folder on the host.
    """
    # No mount from here on reaches the host.
    kernel.mount("none", "/", None, MS_REC | MS_PRIVATE)
    # Opened now: paths below the stage cannot be reached by name once it is mounted.
    library = os.open(stdlib, os.O_PATH)
    sources = {name: (os.open(path, os.O_PATH), os.path.isdir(path)) for name, path in packages.items()}
    devices = {name: os.open(f"/dev/{name}", os.O_PATH) for name in DEVICES}
    kernel.mount("tmpfs", STAGE, "tmpfs", PLAIN, "mode=0755,size=1m")
    for folder in (STDLIB, PACKAGES, TMP, STREAMS, DESCRIPTORS, "/dev", "/old"):
        os.makedirs(STAGE + folder)
    _show(library, STAGE + STDLIB)
    for name in FOREIGN:
        if os.path.isdir(hidden := f"{STAGE}{STDLIB}/{name}"):
            kernel.mount("tmpfs", hidden, "tmpfs", PLAIN | MS_RDONLY, "mode=0755,size=4k")
    for name, (source, is_folder) in sources.items():
        _show(source, _place(f"{STAGE}{PACKAGES}/{name}", is_folder))
    for name, source in devices.items():
        # read-only mount: writing to a device changes no file
        _show(source, _place(f"{STAGE}/dev/{name}", False), MS_NOSUID)
    # Shared memory is then files of /tmp, which has a size.
    os.symlink(TMP, f"{STAGE}/dev/shm")
    program_streams = _make_streams()
    for fd in (library, *(fd for fd, _ in sources.values()), *devices.values()):
        os.close(fd)
    kernel.pivot_root(STAGE, STAGE + "/old")
    os.chdir("/")
    kernel.unmount("/old")
    os.rmdir("/old")
    kernel.mount("none", "/", None, MS_REMOUNT | MS_BIND | MS_RDONLY | PLAIN)
    return program_streams


def tmp_is_empty() -> bool:
    """Return whether /tmp is empty, a check that is cheaper than mounting it again."""
    state = os.statvfs(TMP)
    return state.f_files - state.f_ffree == 1  # the folder itself


def reset_tmp() -> None:
    """Reset mode and times of the folder itself, which a program may have changed."""
    os.chmod(TMP, TMP_MODE)
    os.utime(TMP)


def mount_tmp(size_bytes: int, uid: int, gid: int) -> None:
    """Mount an empty /tmp, owned by a user, of a limited size and number of files."""
    files = max(64, size_bytes // 4096)
    options = f"size={size_bytes},nr_inodes={files},mode={TMP_MODE:o},uid={uid},gid={gid}"
    kernel.mount("tmpfs", TMP, "tmpfs", PLAIN | MS_NOEXEC, options)


def _make_streams() -> streams.Streams:
    """Make the streams in a file system that programs see read-only, and link the names that Linux
    has for them.
    """
    folder = STAGE + STREAMS
    kernel.mount(
        "tmpfs",
        folder,
        "tmpfs",
        PLAIN | MS_NOEXEC,
        f"mode=0755,size={STREAM_BYTES},nr_inodes={len(streams.NAMES) + 1}",
    )
    program_streams = streams.make(folder, STREAMS)
    # The mount with the descriptor that changes the input stays below, where no name leads.
    kernel.mount(folder, folder, None, MS_BIND)
    kernel.mount("none", folder, None, MS_REMOUNT | MS_BIND | MS_RDONLY | PLAIN | MS_NOEXEC)
    for number, path in enumerate(program_streams.paths):
        os.symlink(path, f"{STAGE}{DESCRIPTORS}/{number}")
        os.symlink(f"{DESCRIPTORS}/{number}", f"{STAGE}/dev/{streams.NAMES[number]}")
    os.symlink(DESCRIPTORS, f"{STAGE}/dev/fd")
    return program_streams


def _place(path: str, is_folder: bool) -> str:
    if is_folder:
        os.mkdir(path)
    else:
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o644))
    return path


def _show(source: int, target: str, flags: int = PLAIN) -> None:
    """Bind read-only. The mount flags set by the host are kept, because a user namespace may not
    remove them.
    """
    kernel.mount(f"/proc/self/fd/{source}", target, None, MS_BIND)
    host_flags = os.statvfs(target).f_flag & (MS_NOEXEC | MS_NOSUID | MS_NODEV)
    kernel.mount("none", target, None, MS_REMOUNT | MS_BIND | MS_RDONLY | flags | host_flags)
