"""Messages on a pipe: a JSON object (nothing for an empty one) and some bytes, behind their lengths. Both ends use this file."""

from __future__ import annotations

import functools
import json
import os
import struct
from collections.abc import Callable
from typing import Any

MOST_HEADER_BYTES = 4 << 20
MOST_BLOB_BYTES = 256 << 20
MOST_AT_ONCE = 1 << 20
PIPE_BYTES = 1 << 16


class ClosedError(EOFError):
    """The other end is gone."""


class FrameError(ValueError):
    """What came is not a message."""


LENGTHS = struct.Struct("!IB")
LENGTH = struct.Struct("!I")


def write_frame(fd: int, header: dict[str, Any], *blobs: bytes | bytearray, wait: Callable[[int], None] = lambda fd: None) -> None:
    """Write a message. Raises BrokenPipeError when the other end is gone.

    `wait` is called when a pipe that does not block is full; it may raise to give up.
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
    """Read a message, and no byte more.

    Raises:
        ClosedError: the other end was closed.
        FrameError: the bytes are no message, or a length is beyond the limits.
    """
    return _message(functools.partial(_exactly, fd))


class FrameReader:
    """Reads messages from a pipe that nobody else reads: a short one is a single system call."""

    def __init__(self, fd: int) -> None:
        self._fd, self._held = fd, bytearray()

    def read(self, wait: Callable[[int], None]) -> tuple[dict[str, Any], list[bytes]]:
        """The next message; raises as `read_frame`. `wait` is called before each read and may raise to give up."""
        return _message(functools.partial(self._take, wait))

    def _take(self, wait: Callable[[int], None], count: int) -> bytes:
        while len(self._held) < count:
            wait(self._fd)
            self._held += _some(self._fd, PIPE_BYTES)
        taken = bytes(self._held[:count])
        del self._held[:count]
        return taken


def _message(take: Callable[[int], bytes]) -> tuple[dict[str, Any], list[bytes]]:
    """A message from what gives the next so many bytes."""
    length, count = LENGTHS.unpack(take(LENGTHS.size))
    sizes = [size for (size,) in LENGTH.iter_unpack(take(LENGTH.size * count))] if count else []
    if length > MOST_HEADER_BYTES or sum(sizes) > MOST_BLOB_BYTES:
        raise FrameError(f"a message of {length} and {sizes} bytes; the limits are {MOST_HEADER_BYTES} and {MOST_BLOB_BYTES} in all")
    body = take(length + sum(sizes))
    try:
        header = json.loads(body[:length]) if length else {}
    except (ValueError, RecursionError) as error:
        raise FrameError(f"a message that is not readable: {body[:80]!r}") from error
    if not isinstance(header, dict):
        raise FrameError(f"a message whose header is {type(header).__name__}, expected an object")
    blobs, at = [], length
    for size in sizes:
        blobs.append(body[at : at + size])
        at += size
    return header, blobs


def _exactly(fd: int, count: int) -> bytes:
    if not count:
        return b""
    chunk = _some(fd, min(count, MOST_AT_ONCE))
    if len(chunk) == count:
        return chunk
    parts = bytearray(chunk)
    while len(parts) < count:
        parts += _some(fd, min(count - len(parts), MOST_AT_ONCE))
    return bytes(parts)


def _some(fd: int, most: int) -> bytes:
    chunk = os.read(fd, most)
    if not chunk:
        raise ClosedError("the pipe was closed")
    return chunk
