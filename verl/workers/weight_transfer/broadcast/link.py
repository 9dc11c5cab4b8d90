"""A connection between the sender and a receiver of weights. It ends with either process, so a lost
process is noticed at once.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Sequence
from multiprocessing.connection import wait
from typing import Any

# Pause between two looks at whether a collective has ended.
PAUSE_S = 0.0005
# After a broadcast has failed, how long to wait for the end of the connection to the process whose
# death was the cause.
NOTICE_S = 2.0
# Fields of the message by which a receiver joins an update.
JOINING = {"update", "id", "name", "gpu", "held", "received", "failed"}
_MAX_BYTES = 1 << 20
# A node that is gone closes nothing: after 10 s of silence it is asked three times, every 5 s.
_KEEPALIVE = {socket.TCP_KEEPIDLE: 10, socket.TCP_KEEPINTVL: 5, socket.TCP_KEEPCNT: 3}


class Link:
    """Sends and reads messages, each a JSON object on a line.

    Attributes:
        is_lost: whether the connection has ended, or brought something that is no message.
        message: the fields of the messages that were read, newer ones in place of older ones.
    """

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _KEEPALIVE.items():
            connection.setsockopt(socket.IPPROTO_TCP, option, value)
        self._socket = connection
        self._unread = b""
        self.address: str = connection.getsockname()[0]
        self.is_lost = False
        self.message: dict[str, Any] = {}

    def fileno(self) -> int:
        """Return the file descriptor, for `ready`."""
        return self._socket.fileno()

    def send(self, **message: Any) -> None:
        """Send a message, without waiting: a connection whose buffer is full, since nobody reads,
        is lost.
        """
        try:
            self._socket.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            self.is_lost = True

    def read(self) -> list[dict[str, Any]]:
        """Return the messages that have arrived, without waiting."""
        try:
            while not self.is_lost and len(self._unread) <= _MAX_BYTES:
                data = self._socket.recv(1 << 16)
                self._unread += data
                self.is_lost = not data
        except BlockingIOError:
            pass
        except OSError:
            self.is_lost = True
        *lines, self._unread = self._unread.split(b"\n")
        messages = []
        for line in lines:
            try:
                messages.append(dict(json.loads(line)))
            except (ValueError, TypeError):
                self.is_lost = True
                break
            self.message |= messages[-1]
        self.is_lost = self.is_lost or len(self._unread) > _MAX_BYTES
        return messages


def ready(links: Sequence[Link | socket.socket], pause_s: float) -> list[Any]:
    """Return the links and listening sockets that have something to read; wait up to `pause_s`
    seconds for the first.
    """
    open_links: list[Any] = [link for link in links if not (isinstance(link, Link) and link.is_lost)]
    return wait(open_links, pause_s)
