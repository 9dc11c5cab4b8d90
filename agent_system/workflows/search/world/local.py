"""A local retrieval server: a child process on loopback that ends with its parent, even if that is
killed.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections import deque
from pathlib import Path

from agent_system.workflows.search.world.wire import RetrievalError

SERVER = "agent_system.workflows.search.world.server"
ROOT = Path(__file__).resolve().parents[4]


class LocalServer:
    """`python -m agent_system.workflows.search.world.server` for one corpus, on a free port.

    It ends when standard input closes, which this process holds open. It is in a session of its
    own, so that Ctrl-C in the terminal does not reach it: after the first Ctrl-C the trainer
    finishes its step and still needs the server.

    Attributes:
        url: address of `/retrieve`.
        pid: process id.
    """

    def __init__(self, corpus: str, *, start_timeout_s: float, arguments: tuple[str, ...] = ()) -> None:
        """Start the server and wait until it answers.

        Raises:
            RetrievalError: the server ends, or is not ready within `start_timeout_s`; the message
                has the last lines of its output.
        """
        command = [
            "--corpus",
            str(Path(corpus).expanduser().absolute()),
            "--port",
            "0",
            "--until-stdin-closes",
            *arguments,
        ]
        self._child = subprocess.Popen(
            [sys.executable, "-m", SERVER, *command],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.pid = self._child.pid
        self.url = ""
        self._last: deque[str] = deque(maxlen=5)
        self._settled = threading.Event()
        threading.Thread(target=self._listen, name="retrieval-server", daemon=True).start()
        if not self._settled.wait(start_timeout_s) or not self.url:
            ended = self._child.poll()
            self.close()
            how = (
                f"ended with status {ended}"
                if ended is not None
                else f"was not ready within env.params.start_timeout_s={start_timeout_s:g} s"
            )
            raise RetrievalError(
                f"the retrieval server of {corpus} {how}; it wrote: {' | '.join(self._last) or 'nothing'}"
            )

    @property
    def alive(self) -> bool:
        """Whether the process is running."""
        return self._child.poll() is None

    def close(self) -> None:
        """End the server."""
        self._child.kill()
        self._child.wait()
        if self._child.stdin is not None:
            self._child.stdin.close()

    def _listen(self) -> None:
        assert self._child.stdout is not None
        with self._child.stdout as lines:
            for line in lines:
                self._last.append(line.strip())
                if not self.url and line.startswith("http://"):
                    self.url = line.strip()
                    self._settled.set()
        self._child.wait()
        self._settled.set()
