"""Messages on a pipe: lengths, a JSON object (no bytes for an empty one) and binary blobs. Both
ends use this file.
"""

from __future__ import annotations

import functools
import json
import os
import struct
from collections.abc import Callable
from typing import Any

MAX_HEADER_BYTES = 4 << 20
MAX_BLOB_BYTES = 256 << 20
MAX_READ_BYTES = 1 << 20
PIPE_BYTES = 1 << 16


class ClosedError(EOFError):
    """The other end was closed."""


class FrameError(ValueError):
    """The bytes are not a message."""


LENGTHS = struct.Struct("!IB")
LENGTH = struct.Struct("!I")


def write_frame(
    fd: int, header: dict[str, Any], *blobs: bytes | bytearray, wait: Callable[[int], None] = lambda fd: None
) -> None:
    """Write a message. Raise BrokenPipeError when the other end was closed.

    `wait` is called when a non-blocking pipe is full; it may raise to abort.
    """
    text = json.dumps(header).encode() if header else b""
    lengths = b"".join([LENGTHS.pack(len(text), len(blobs)), *[LENGTH.pack(len(blob)) for blob in blobs]])
    view = memoryview(b"".join((lengths, text, *blobs)))
    while view:
        try:
            view = view[os.write(fd, view) :]
        except BlockingIOError:
            wait(fd)


def read_frame(fd: int) -> tuple[dict[str, Any], list[bytes]]:
    """Read a message and no further byte.

    Raises:
        ClosedError: the other end was closed.
        FrameError: the bytes are not a message, or a length exceeds the limits.
    """
    return _message(functools.partial(_exactly, fd))


class FrameReader:
    """Buffered reader of messages; it must be the only reader of its pipe. A short message is a
    single system call.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._buffer = bytearray()

    def read(self, wait: Callable[[int], None]) -> tuple[dict[str, Any], list[bytes]]:
        """Return the next message; raise as `read_frame`. `wait` is called before each read and may
        raise to abort.
        """
        return _message(functools.partial(self._take, wait))

    def _take(self, wait: Callable[[int], None], count: int) -> bytes:
        while len(self._buffer) < count:
            wait(self._fd)
            self._buffer += _some(self._fd, PIPE_BYTES)
        chunk = bytes(self._buffer[:count])
        del self._buffer[:count]
        return chunk


def _message(take: Callable[[int], bytes]) -> tuple[dict[str, Any], list[bytes]]:
    """Read a message with `take`, which returns the given number of next bytes."""
    length, count = LENGTHS.unpack(take(LENGTHS.size))
    sizes = [size for (size,) in LENGTH.iter_unpack(take(LENGTH.size * count))] if count else []
    if length > MAX_HEADER_BYTES or sum(sizes) > MAX_BLOB_BYTES:
        raise FrameError(
            f"a message of {length} and {sizes} bytes; the limits are {MAX_HEADER_BYTES} and "
            f"{MAX_BLOB_BYTES} in all"
        )
    body = take(length + sum(sizes))
    try:
        header = json.loads(body[:length]) if length else {}
    except (ValueError, RecursionError) as error:
        raise FrameError(f"a message whose header is not JSON: {body[:80]!r}") from error
    if not isinstance(header, dict):
        raise FrameError(f"a message whose header is {type(header).__name__}, expected an object")
    blobs = []
    at = length
    for size in sizes:
        blobs.append(body[at : at + size])
        at += size
    return header, blobs


def _exactly(fd: int, count: int) -> bytes:
    if not count:
        return b""
    chunk = _some(fd, min(count, MAX_READ_BYTES))
    if len(chunk) == count:
        return chunk
    parts = bytearray(chunk)
    while len(parts) < count:
        parts += _some(fd, min(count - len(parts), MAX_READ_BYTES))
    return bytes(parts)


def _some(fd: int, most: int) -> bytes:
    chunk = os.read(fd, most)
    if not chunk:
        raise ClosedError("the pipe was closed")
    return chunk
