"""What a full or refusing disk does to a run, in one line that names the file and the way out."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
REFUSED = (
    errno.EACCES, errno.EPERM, errno.EROFS, errno.EIO, errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP,
)  # fmt: skip


class DiskError(RuntimeError):
    """A file of the run that could not be written; the message names it, what happened and what to do."""


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Write `path`, a file or a folder, in the body.

    Raises:
        DiskError: the disk is full or refuses; any other OSError is no matter of the disk and stays what it is.
    """
    try:
        yield
    except OSError as error:
        # A file that is not there is a bug, but for the one that was to be made: some file systems refuse a new one so.
        cannot_be_made = error.errno == errno.ENOENT and error.filename and Path(error.filename) in (path, *path.parents)
        if error.errno not in (*FULL, *REFUSED) and not cannot_be_made:
            raise
        fix = "free space there" if error.errno in FULL else "make it writable"
        raise DiskError(
            f"{error.filename or path} could not be written: {os.strerror(error.errno or 0)}; {fix}, or set trainer.default_local_dir to "
            "another disk; checkpoints that were complete are intact"
        ) from error
