"""Messages on a pipe: a JSON object (nothing for an empty one) and some bytes, behind their lengths. Both ends use this file."""

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


LENGTHS = struct.Struct("!IB")
LENGTH = struct.Struct("!I")


def write_frame(fd: int, header: dict[str, Any], *blobs: bytes | bytearray, wait: Callable[[int], None] = lambda fd: None) -> None:
    """Write a message; `wait` is called before each write and may raise to give up. Raises BrokenPipeError when the other end is gone."""
    text = json.dumps(header).encode() if header else b""
    lengths = b"".join([LENGTHS.pack(len(text), len(blobs)), *[LENGTH.pack(len(blob)) for blob in blobs]])
    view = memoryview(b"".join((lengths, text, *blobs)))
    while view:
        wait(fd)
        view = view[os.write(fd, view) :]


def read_frame(fd: int, wait: Callable[[int], None] = lambda fd: None) -> tuple[dict[str, Any], list[bytes]]:
    """Read a message, and no byte more.

    Args:
        fd: where from.
        wait: called before each read; it may raise to give up.

    Raises:
        ClosedError: the other end was closed.
        FrameError: the bytes are no message, or a length is beyond the limits.
    """
    length, count = LENGTHS.unpack(_exactly(fd, LENGTHS.size, wait))
    sizes = [size for (size,) in LENGTH.iter_unpack(_exactly(fd, LENGTH.size * count, wait))] if count else []
    if length > MOST_HEADER_BYTES or sum(sizes) > MOST_BLOB_BYTES:
        raise FrameError(f"a message of {length} and {sizes} bytes; the limits are {MOST_HEADER_BYTES} and {MOST_BLOB_BYTES} in all")
    body = _exactly(fd, length + sum(sizes), wait)
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


def _exactly(fd: int, count: int, wait: Callable[[int], None]) -> bytes:
    if not count:
        return b""
    wait(fd)
    chunk = os.read(fd, min(count, 1 << 20))
    if len(chunk) == count:
        return chunk
    parts = bytearray(chunk)
    while len(parts) < count and chunk:
        wait(fd)
        chunk = os.read(fd, min(count - len(parts), 1 << 20))
        parts += chunk
    if not chunk:
        raise ClosedError("the pipe was closed")
    return bytes(parts)
