"""Messages on a pipe: four bytes of length, a JSON object, then as many bytes as its `blobs` say. Both ends use this file."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable
from typing import Any

MOST_HEADER_BYTES = 4 << 20
MOST_BLOB_BYTES = 256 << 20


class ClosedError(EOFError):
    """The other end is gone."""


class FrameError(ValueError):
    """What came is not a message."""


def write_frame(fd: int, header: dict[str, Any], *blobs: bytes | bytearray, wait: Callable[[int], None] = lambda fd: None) -> None:
    """Write a message; `wait` is called before each write and may raise to give up. Raises BrokenPipeError when the other end is gone."""
    text = json.dumps({**header, "blobs": [len(blob) for blob in blobs]}).encode()
    for part in (struct.pack("!I", len(text)) + text, *blobs):
        view = memoryview(part)
        while view:
            wait(fd)
            view = view[os.write(fd, view) :]


def read_frame(fd: int, wait: Callable[[int], None] = lambda fd: None) -> tuple[dict[str, Any], list[bytes]]:
    """Read a message.

    Args:
        fd: where from.
        wait: called before each read; it may raise to give up.

    Raises:
        ClosedError: the other end was closed.
        FrameError: the bytes are no message, or a length is beyond the limits.
    """
    (length,) = struct.unpack("!I", _exactly(fd, 4, wait))
    if length > MOST_HEADER_BYTES:
        raise FrameError(f"a message with a header of {length} bytes; the limit is {MOST_HEADER_BYTES}")
    text = _exactly(fd, length, wait)
    try:
        header = json.loads(text)
        sizes = [int(size) for size in header["blobs"]]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise FrameError(f"a message that is not readable: {text[:80]!r}") from error
    if min(sizes, default=0) < 0 or sum(sizes) > MOST_BLOB_BYTES:
        raise FrameError(f"a message with blobs of {sizes} bytes; the limit is {MOST_BLOB_BYTES}")
    return header, [_exactly(fd, size, wait) for size in sizes]


def _exactly(fd: int, count: int, wait: Callable[[int], None]) -> bytes:
    parts = bytearray()
    while len(parts) < count:
        wait(fd)
        chunk = os.read(fd, min(count - len(parts), 1 << 20))
        if not chunk:
            raise ClosedError("the pipe was closed")
        parts += chunk
    return bytes(parts)
