"""A worker as a process of this machine, connected by a socket pair:
`python -m agent_system.env_workers <descriptor>`.
"""

from __future__ import annotations

import os
import queue
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from multiprocessing.connection import Connection

from agent_system.env_workers.messages import WorkerGoneError

NUMBER_BYTES = 8
EXIT_S = 5.0


class ProcessWorker:
    """The driver's end of a worker process. A frame is the request's number in 8 bytes and a
    pickle.

    Two threads own the socket, so that sending never blocks the event loop, and a worker outlives
    the loop that started it.
    """

    def __init__(self, source: bytes, environment: Mapping[str, str] | None = None) -> None:
        """Start the process and send it a pickled `EnvSource`, whose answer has the number 0.

        Args:
            source: the pickled source.
            environment: variables in addition to those of this process.
        """
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "agent_system.env_workers", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env={**os.environ, **(environment or {})},
                start_new_session=True,  # Ctrl-C is for the driver
            )
        self.pid = self._process.pid
        self._socket = ours
        self._connection = Connection(os.dup(ours.fileno()))
        self._frames: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._pending: dict[int, Future[bytes]] = {}
        self._lock = threading.Lock()
        self._death: WorkerGoneError | None = None
        self.started = self.send(0, source)
        self._writer = self._thread(self._write)
        self._thread(self._read)

    def send(self, number: int, payload: bytes) -> Future[bytes]:
        """Queue a request."""
        future: Future[bytes] = Future()
        with self._lock:
            if self._death is None:
                self._pending[number] = future
                self._frames.put(number.to_bytes(NUMBER_BYTES, "big") + payload)
            else:
                future.set_exception(self._death)
        return future

    def kill(self) -> None:
        """Kill the process; its reading thread fails the pending requests."""
        self._process.kill()

    def close(self) -> None:
        """Let the process see the end of its input."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def wait(self) -> None:
        """Wait until the process has ended, and kill it if it does not."""
        try:
            self._process.wait(EXIT_S)
        except subprocess.TimeoutExpired:
            self.kill()
            self._process.wait()

    def _thread(self, work: Callable[[], None]) -> threading.Thread:
        thread = threading.Thread(target=work, name=f"env-worker-{self.pid}", daemon=True)
        thread.start()
        return thread

    def _write(self) -> None:
        # the reading thread sees the end of the process
        with suppress(OSError):
            while (frame := self._frames.get()) is not None:
                self._connection.send_bytes(frame)

    def _read(self) -> None:
        with suppress(EOFError, OSError):
            while True:
                frame = self._connection.recv_bytes()
                with self._lock:
                    future = self._pending.pop(int.from_bytes(frame[:NUMBER_BYTES], "big"))
                with suppress(InvalidStateError):  # cancelled
                    future.set_result(frame[NUMBER_BYTES:])
        # Its output ends a moment before its exit status is known.
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(EXIT_S)
        self._process.kill()
        status = self._process.wait()
        error = WorkerGoneError(
            f"it died ({signal.Signals(-status).name if status < 0 else f'exit status {status}'})"
        )
        with self._lock:
            self._death = error
            pending = self._pending
            self._pending = {}
        # For the writer, which may be waiting for a frame.
        self._frames.put(None)
        for future in pending.values():
            with suppress(InvalidStateError):
                future.set_exception(error)
        # or it would write to the descriptor's next owner
        self._writer.join()
        self._connection.close()
        self._socket.close()
