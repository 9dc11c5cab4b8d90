"""Python commands forked from a process that has imported torch, transformers and verl: they do not pay for
these imports again.

`ForkServer.write_client` makes a program that takes the arguments of `python`. It sends them with its folder,
environment and standard streams to the server, which forks, and ends with the exit status of the forked
process, or by the same signal. Signals to the client reach the process; the process is killed when its client
is gone. Use it where start and end of the interpreter are not what is tested: modules are imported already,
what lives to the end is not finalized (functions of `atexit` are called), and `/proc/<pid>/environ` of the
forked process is the environment of the server.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import random
import runpy
import selectors
import signal
import socket
import struct
import subprocess
import sys
import time
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

# Without Ray, which reads its environment when it is imported: its workers find their job there.
PRELOADED = (
    "pandas",
    "pyarrow.parquet",
    "torch",
    "transformers.models.auto.tokenization_auto",
    "transformers.models.qwen3.modeling_qwen3",
    "verl.single_controller.local",
    "agent_system.launch.train",
    "verl.trainer.sft_trainer",
    "verl.workers.critic_worker",
    "verl.workers.policy_worker",
    "verl.workers.rollout.hf_engine",
    "verl.workers.rollout.server",
)
# numpy and pyarrow start no thread: what is forked has only the one that forks.
WITHOUT_THREADS = {"OPENBLAS_NUM_THREADS": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false"}
LENGTH = struct.Struct("!I")
statuses: list[int] = []  # of this process, once its program has ended without an error
POLL_S = 0.02
# Runs without `site` and without anything of the project: about 20 ms.
CLIENT = """#!PYTHON -IS
import array, json, os, signal, socket, struct, sys
arguments = sys.argv[1:]
if not arguments or (arguments[0] != "-m" and arguments[0].startswith("-")):
    os.execv("PYTHON", ["PYTHON", *arguments])
# those that come before the process is known wait for it
signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
server = socket.socket(socket.AF_UNIX)
server.connect("ADDRESS")
told = {"executable": EXECUTABLE, "arguments": arguments, "folder": os.getcwd(), "environment": dict(os.environ)}
request = json.dumps(told).encode()
head = struct.pack("!I", len(request))
server.sendmsg([head], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0, 1, 2]))])
server.sendall(request)
replies = server.makefile()
pid = int(replies.readline() or 0)
def pass_on(number, _):
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass  # it has just ended, and its status is on the way
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, pass_on)
signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGINT, signal.SIGTERM))
status = int(replies.readline() or 1)
if status < 0:
    if -status != signal.SIGKILL:
        signal.signal(-status, signal.SIG_DFL)
    os.kill(os.getpid(), -status)
os._exit(status)
"""


class ForkServer:
    """Starts the server in a process of its own, which ends with this process at the latest.

    Args:
        folder: for the socket; its path is short.
    """

    def __init__(self, folder: Path, preloaded: tuple[str, ...] = PRELOADED) -> None:
        self.address = str(folder / "fork.socket")
        root = Path(__file__).resolve().parents[1]
        command = [sys.executable, "-m", "tests.forked", self.address, *preloaded]
        self.process = subprocess.Popen(
            command,
            cwd=root,
            env=os.environ | WITHOUT_THREADS,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == b"ready\n", (
            "the server ended while it started; its error is on stderr"
        )

    def write_client(self, path: Path, starts_itself: bool = False) -> None:
        """Make the program; with `starts_itself` it is `sys.executable` in the scripts (not the modules) that
        it runs.
        """
        executable = repr(str(path) if starts_itself else sys.executable)
        path.write_text(
            CLIENT.replace("EXECUTABLE", executable)
            .replace("PYTHON", sys.executable)
            .replace("ADDRESS", self.address)
        )
        path.chmod(0o755)

    @staticmethod
    def workers(python: str) -> dict[str, str]:
        """The environment of a command whose Ray workers are forked as well, by a program of
        `write_client`.
        """
        return {"RAY_JOB_CONFIG_JSON_ENV_VAR": json.dumps({"runtime_env": {"py_executable": python}})}

    def close(self) -> None:
        """End the server, and kill what it forked and still runs."""
        try:
            self.process.communicate(timeout=10)
        except subprocess.TimeoutExpired:  # a process that a test has forked holds the other end of its stdin
            self.process.kill()
            self.process.communicate(timeout=10)


def receive(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Return the request of a client, and its standard streams."""
    connection.settimeout(30)
    head, streams, _, _ = socket.recv_fds(connection, LENGTH.size, 3)
    (length,) = LENGTH.unpack(head)
    request = b""
    while len(request) < length:
        part = connection.recv(length - len(request))
        if not part:
            raise ConnectionError("the client left in the middle of its request")
        request += part
    return json.loads(request), streams


def serve(address: str) -> tuple[dict[str, Any], list[int]]:
    """Fork for every client; returns its request and streams, in the forked process only."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen(16)
    selector = selectors.DefaultSelector()
    selector.register(listener, selectors.EVENT_READ)
    selector.register(0, selectors.EVENT_READ)
    clients: dict[int, socket.socket] = {}
    os.write(1, b"ready\n")
    while True:
        for key, _ in selector.select(POLL_S if clients else None):
            if key.fileobj == 0:  # the tests are over
                for pid in clients:
                    kill(pid)
                os._exit(0)
            if key.fileobj is not listener:  # a client says nothing after its request: it is gone
                selector.unregister(key.fileobj)
                kill(key.data)
                continue
            connection, _ = listener.accept()
            try:
                request, streams = receive(connection)
            except (OSError, struct.error):
                connection.close()
                continue
            pid = os.fork()
            if pid == 0:
                os.setsid()
                for held in (selector, listener, connection, *clients.values()):
                    held.close()
                return request, streams
            for stream in streams:
                os.close(stream)
            clients[pid] = connection
            selector.register(connection, selectors.EVENT_READ, pid)
            tell(connection, pid)
        for pid in list(clients):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                connection = clients.pop(pid)
                with suppress(KeyError):
                    selector.unregister(connection)
                tell(connection, os.waitstatus_to_exitcode(status))
                connection.close()


def tell(connection: socket.socket, number: int) -> None:
    """Send a line to a client that may be gone."""
    with suppress(OSError):
        connection.sendall(f"{number}\n".encode())


def kill(pid: int) -> None:
    """Kill the forked process and its process group."""
    for send in (os.killpg, os.kill):
        with suppress(ProcessLookupError):
            send(pid, signal.SIGKILL)


def other_threads(within_s: float) -> list[str]:
    """Return the names of the threads beside this one that still run after so many seconds at most."""
    deadline = time.monotonic() + within_s
    while True:
        names = []
        for task in Path("/proc/self/task").iterdir():
            with suppress(OSError):
                names += [(task / "comm").read_text().strip()] if int(task.name) != os.getpid() else []
        if not names or time.monotonic() > deadline:
            return names
        time.sleep(0.1)


def run(request: dict[str, Any], streams: list[int]) -> None:
    """Run the client's command as `python` does: as `__main__`, in its folder and environment, on its
    streams.
    """
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(request["folder"])
    paths = [os.environ.get("PYTHONPATH"), request["environment"].get("PYTHONPATH")]
    os.environ.clear()
    os.environ.update(request["environment"])
    own, given = ([path for path in (value or "").split(os.pathsep) if path] for value in paths)
    rest = [path for path in sys.path[1:] if path not in own]
    first, *arguments = request["arguments"]
    module = first == "-m"
    sys.path[:] = [request["folder"] if module else str(Path(first).resolve().parent), *given, *rest]
    importlib.invalidate_caches()
    random.seed()
    sys.argv = arguments if module else [first, *arguments]
    warnings.filterwarnings("ignore", "'.*' found in sys.modules", RuntimeWarning)
    try:
        if module:
            runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
        else:
            sys.executable = request["executable"]
            runpy.run_path(first, run_name="__main__")
    except SystemExit as ended:
        if isinstance(ended.code, int | None):
            statuses.append(ended.code or 0)
        raise
    statuses.append(0)


def leave() -> None:
    """End a forked process that has a status, after everything else that is done at the end: taking modules
    apart takes half a second.
    """
    gc.unfreeze()  # one without a status takes its modules apart
    for status in statuses:
        with suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status & 0xFF)


if __name__ == "__main__":
    atexit.register(leave)  # before all others, which makes it the last
    gc.set_threshold(50_000)
    for name in sys.argv[2:]:
        importlib.import_module(name)
    gc.collect()
    # else every forked process searches all modules for what it may free, and gets a copy of them
    gc.freeze()
    assert not (running := other_threads(within_s=10)), (
        f"what is imported has started {running}: a forked process would not have them"
    )
    run(*serve(sys.argv[1]))
