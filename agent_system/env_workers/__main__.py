"""The process behind `ProcessWorker`: answers the requests that arrive on the socket whose
descriptor is its argument.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from contextlib import suppress
from multiprocessing.connection import Connection

from agent_system.env_workers.host import start_host
from agent_system.env_workers.process import EXIT_S, NUMBER_BYTES
from agent_system.sandbox import close_shared

PARENT_CHECK_S = 1.0


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
