"""The standard streams of programs: a file with the input and two named pipes, so that programs can
open them by name as well.

They are made once for each worker, whose programs run one after the other.
"""

from __future__ import annotations

import io
import os
import sys
from typing import NamedTuple

NAMES = ("stdin", "stdout", "stderr")
# Every user reads the input and writes to the pipes; only the descriptor of `Streams.writer`
# changes the input.
INPUT_MODE = 0o444
PIPE_MODE = 0o622


class Streams(NamedTuple):
    """The streams of a worker's programs.

    Attributes:
        writer: descriptor that changes the input.
        paths: the input and the two pipes, as a job's init and programs see them.
    """

    writer: int
    paths: tuple[str, ...]

    def fill(self, stdin: bytes) -> None:
        """Replace the input."""
        os.ftruncate(self.writer, 0)
        position = 0
        while position < len(stdin):
            position += os.pwrite(self.writer, stdin[position : position + (1 << 20)], position)

    def open_input(self) -> int:
        """Return a descriptor of the input, at its beginning, for a program."""
        return os.open(self.paths[0], os.O_RDONLY)

    def open_reader(self, index: int) -> int:
        """Return a descriptor to read from a pipe; while it is open, the pipe can be opened for
        writing.
        """
        # without a writer, others would wait for one
        reader = os.open(self.paths[index], os.O_RDONLY | os.O_NONBLOCK)
        os.set_blocking(reader, True)
        return reader

    def open_writer(self, index: int) -> int:
        """Return a descriptor of a pipe for a program."""
        return os.open(self.paths[index], os.O_WRONLY)


def make(folder: str, visible_folder: str) -> Streams:
    """Make the streams in a folder, which programs see as `visible_folder`."""
    first, *others = (os.path.join(folder, name) for name in NAMES)
    writer = os.open(first, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, INPUT_MODE)
    os.fchmod(writer, INPUT_MODE)
    for path in others:
        os.mkfifo(path)
        os.chmod(path, PIPE_MODE)
    return Streams(writer, tuple(os.path.join(visible_folder, name) for name in NAMES))


def open_all(streams: Streams) -> None:
    """Create new `sys.stdin`, `sys.stdout` and `sys.stderr` over descriptors that are replaced
    before a program runs.

    They are as Python has them, but half a surrogate can be printed, which ends a program of plain
    Python.
    """
    _open_stdin(streams)
    out = io.TextIOWrapper(_writer(1, "<stdout>"), encoding="utf-8", errors="backslashreplace", newline="\n")
    _set("stdout", out, "w")
    errors = io.TextIOWrapper(
        _writer(2, "<stderr>"), encoding="utf-8", errors="backslashreplace", newline="\n", line_buffering=True
    )
    _set("stderr", errors, "w")


def _open_stdin(streams: Streams) -> None:
    # A stream learns at its creation whether it can seek, so it is created over an input as
    # programs get it.
    stdin_copy = os.dup(0)
    input_fd = streams.open_input()
    os.dup2(input_fd, 0)
    raw = io.FileIO(0, "rb", closefd=False)
    raw.name = "<stdin>"
    stream = io.TextIOWrapper(io.BufferedReader(raw), encoding="utf-8", errors="strict", newline="\n")
    _set("stdin", stream, "r")
    os.dup2(stdin_copy, 0)
    os.close(input_fd)
    os.close(stdin_copy)


def _writer(fd: int, name: str) -> io.BufferedWriter:
    raw = io.FileIO(fd, "wb", closefd=False)
    raw.name = name
    return io.BufferedWriter(raw)


def _set(name: str, stream: io.TextIOWrapper, mode: str) -> None:
    stream.mode = mode  # type: ignore[misc]
    setattr(sys, name, stream)
    setattr(sys, f"__{name}__", stream)
