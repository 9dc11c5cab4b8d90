"""Messages on a pipe: whole, in pieces, several at once, and to a reader that is slow."""

from __future__ import annotations

import os
import threading

import pytest

from agent_system.sandbox.jail import frames

MESSAGES = [({}, [b"a", b""]), ({"mode": "end"}, []), ({"x": "é"}, [b"\x00" * 200_000, b"tail"])]


def nothing(fd: int) -> None:
    """What waits for a pipe that blocks."""


def test_messages_that_come_together_and_in_pieces_are_read_one_by_one() -> None:
    reading, writing = os.pipe()
    sent, at_once = os.pipe()
    for header, blobs in MESSAGES[:2]:
        frames.write_frame(at_once, header, *blobs)
    together = os.read(sent, 1000)

    def send() -> None:
        os.write(writing, together[:3])
        os.write(writing, together[3:])
        frames.write_frame(writing, MESSAGES[2][0], *MESSAGES[2][1])
        os.close(writing)

    thread = threading.Thread(target=send)
    thread.start()
    reader = frames.FrameReader(reading)
    assert [reader.read(nothing) for _ in MESSAGES] == MESSAGES
    with pytest.raises(frames.ClosedError):
        reader.read(nothing)
    thread.join()


def test_a_shared_pipe_is_read_to_the_end_of_the_message_only() -> None:
    reading, writing = os.pipe()
    for header, blobs in MESSAGES[:2]:
        frames.write_frame(writing, header, *blobs)
    assert [frames.read_frame(reading), frames.FrameReader(reading).read(nothing)] == MESSAGES[:2]


def test_a_full_pipe_is_waited_for_and_the_wait_can_give_up() -> None:
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    read = bytearray()

    def drain(fd: int) -> None:
        assert fd == writing
        read.extend(os.read(reading, 1 << 20))

    frames.write_frame(writing, {}, b"x" * 300_000, wait=drain)
    read.extend(os.read(reading, 1 << 20))
    assert len(read) == frames.LENGTHS.size + frames.LENGTH.size + 300_000

    def give_up(fd: int) -> None:
        raise TimeoutError

    with pytest.raises(TimeoutError):
        frames.write_frame(writing, {}, b"x" * 300_000, wait=give_up)


def test_rubbish_is_no_message() -> None:
    for rubbish in (
        frames.LENGTHS.pack(1 << 30, 0),
        frames.LENGTHS.pack(2, 0) + b"[]",
        frames.LENGTHS.pack(2, 0) + b"{\xff",
    ):
        reading, writing = os.pipe()
        os.write(writing, rubbish)
        with pytest.raises(frames.FrameError):
            frames.FrameReader(reading).read(nothing)
