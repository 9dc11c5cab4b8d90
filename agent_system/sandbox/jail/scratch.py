"""The writable folder of programs where it is a folder of the host: emptied and measured whatever a
program left in it.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress

ENTRY_BYTES = 4096
MAX_ENTRIES = 200_000


def empty(folder: str) -> None:
    """Remove everything in a folder. Folders inside are moved up before they are emptied, so depth
    does not matter.
    """
    number = 0
    # the program may have removed the permission to list it
    os.chmod(folder, 0o700)
    while names := os.listdir(folder):
        for name in names:
            path = os.path.join(folder, name)
            if not stat.S_ISDIR(os.lstat(path).st_mode):
                os.unlink(path)
                continue
            os.chmod(path, 0o700)
            for inner in os.listdir(path):
                source = os.path.join(path, inner)
                if stat.S_ISDIR(os.lstat(source).st_mode):
                    os.chmod(source, 0o700)
                    number += 1
                    # The program may have used the name.
                    while os.path.lexists(target := os.path.join(folder, f"moved-{number}")):
                        number += 1
                    os.rename(source, target)
                else:
                    os.unlink(source)
            os.rmdir(path)


def remove(folder: str) -> None:
    """Remove a folder with its contents, if it exists; of a link in its place, remove only the
    link.
    """
    with suppress(FileNotFoundError):
        if not stat.S_ISDIR(os.lstat(folder).st_mode):
            os.unlink(folder)
            return
        empty(folder)
        os.rmdir(folder)


def used_bytes(folder: str) -> int:
    """Return the disk space used below a folder in bytes, at least `ENTRY_BYTES` per entry; stop
    counting at `MAX_ENTRIES`.
    """
    total = entries = 0
    folders = [folder]
    while folders and entries < MAX_ENTRIES:
        # The program removes entries meanwhile.
        with suppress(OSError), os.scandir(folders.pop()) as listed:
            for entry in listed:
                entries += 1
                with suppress(OSError):
                    total += max(ENTRY_BYTES, entry.stat(follow_symlinks=False).st_blocks * 512)
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.path)
    return total
