"""A worker as a process of this machine, connected by a socket pair: `python -m agent_system.env_workers.process <descriptor>`."""

from __future__ import annotations

import asyncio
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from multiprocessing.connection import Connection

from agent_system.env_workers.host import start_host
from agent_system.env_workers.messages import WorkerGoneError
from agent_system.sandbox import close_shared

NUMBER_BYTES = 8
EXIT_S = 5.0
PARENT_CHECK_S = 1.0


class ProcessWorker:
    """The driver's end of a worker process. A frame is the request's number in 8 bytes and a pickle.

    Two threads own the socket, so that sending never blocks the event loop, and a worker outlives the loop that started it.
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
                [sys.executable, "-m", __name__, str(theirs.fileno())],
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
        self._gone: WorkerGoneError | None = None
        self.started = self.send(0, source)
        for work in (self._write, self._read):
            threading.Thread(target=work, name=f"env-worker-{self.pid}", daemon=True).start()

    def send(self, number: int, payload: bytes) -> Future[bytes]:
        """Queue a request."""
        future: Future[bytes] = Future()
        with self._lock:
            if self._gone is None:
                self._pending[number] = future
                self._frames.put(number.to_bytes(NUMBER_BYTES, "big") + payload)
            else:
                future.set_exception(self._gone)
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

    def _write(self) -> None:
        with suppress(OSError):  # the reading thread sees the end of the process
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
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(EXIT_S)
        self._process.kill()
        status = self._process.wait()
        gone = WorkerGoneError(f"it died ({signal.Signals(-status).name if status < 0 else f'exit status {status}'})")
        with self._lock:
            self._gone = gone
            pending, self._pending = self._pending, {}
        self._frames.put(None)
        for future in pending.values():
            with suppress(InvalidStateError):
                future.set_exception(gone)
        self._connection.close()
        self._socket.close()


def _leave_with_parent(parent: int) -> None:
    """End the process when its parent has died, however busy the event loop is."""
    while os.getppid() == parent:
        time.sleep(PARENT_CHECK_S)
    os._exit(1)


async def _serve(connection: Connection) -> None:
    """Answer the driver's requests until its end of the socket is closed."""
    loop = asyncio.get_running_loop()
    host, answer = start_host(connection.recv_bytes()[NUMBER_BYTES:])
    connection.send_bytes((0).to_bytes(NUMBER_BYTES, "big") + answer)
    if host is None:
        return
    over = asyncio.Event()
    tasks: set[asyncio.Task[None]] = set()

    async def reply(frame: bytes) -> None:
        result = await host.answer(int.from_bytes(frame[:NUMBER_BYTES], "big"), frame[NUMBER_BYTES:])
        connection.send_bytes(frame[:NUMBER_BYTES] + result)

    def start(frame: bytes) -> None:
        task = loop.create_task(reply(frame))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    def read() -> None:
        with suppress(EOFError, OSError):
            while True:
                loop.call_soon_threadsafe(start, connection.recv_bytes())
        loop.call_soon_threadsafe(over.set)
        time.sleep(EXIT_S)
        os._exit(1)

    threading.Thread(target=read, daemon=True).start()
    await over.wait()


def main() -> None:
    """Run one worker."""
    threading.Thread(target=_leave_with_parent, args=(os.getppid(),), daemon=True).start()
    with suppress(EOFError, OSError), asyncio.Runner() as runner:  # the driver has gone
        try:
            runner.run(_serve(Connection(int(sys.argv[1]))))
        finally:
            close_shared()
            os._exit(0)  # threads of environments may hang


if __name__ == "__main__":
    main()
