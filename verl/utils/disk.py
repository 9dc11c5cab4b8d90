"""Files that are written whole, and errors of a full or read-only disk as one line with the file and
the fix.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
REFUSED = (
    errno.EACCES, errno.EPERM, errno.EROFS, errno.EIO, errno.EEXIST, errno.ENOTDIR, errno.EISDIR,
    errno.ENAMETOOLONG, errno.ELOOP,
)  # fmt: skip


class DiskError(RuntimeError):
    """A file of the run that could not be written; the message has the file, the cause and the fix."""


def write_whole(path: Path, content: bytes, *, synced: bool = False) -> None:
    """Write a file under another name and rename it, so that a reader or a crash never meets a half.

    Args:
        path: the file, in a folder that exists.
        content: all of it.
        synced: return only when it is on the disk.

    Raises:
        OSError: it cannot be written; an earlier file of this name is then intact.
    """
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with aside.open("wb") as file:
            file.write(content)
            if synced:
                file.flush()
                os.fsync(file.fileno())
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Convert OSErrors of writing `path`, a file or a folder, inside the block.

    Raises:
        DiskError: the disk is full or refuses the write; other OSErrors are not converted.
    """
    try:
        yield
    except OSError as error:
        # ENOENT is a bug, except for the file to be created: some file systems refuse a new file
        # with this error.
        cannot_be_created = (
            error.errno == errno.ENOENT and error.filename and Path(error.filename) in (path, *path.parents)
        )
        if error.errno not in (*FULL, *REFUSED) and not cannot_be_created:
            raise
        fix = "free space there" if error.errno in FULL else "make it writable"
        raise DiskError(
            f"{error.filename or path} could not be written: {os.strerror(error.errno or 0)}; "
            f"{fix}, or set trainer.default_local_dir to another disk; complete checkpoints are "
            "intact"
        ) from error
