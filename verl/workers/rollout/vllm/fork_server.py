"""Processes of engines on a CPU, forked from a server that has imported vLLM: importing takes most
of the time in which an engine starts, and is done once for all engines of this process.

A library may read a variable of the environment when it is loaded, so an engine is forked only from
a server that was started in the same environment, but for `HANDED_OVER`. Engines on a GPU are not
forked: a process that is forked from one that uses CUDA cannot.
"""

from __future__ import annotations

import io
import multiprocessing.context
import multiprocessing.util
import os
import tempfile
import threading
from concurrent.futures import Future
from multiprocessing import forkserver, popen_forkserver, reduction, spawn
from multiprocessing.context import set_spawning_popen
from multiprocessing.process import BaseProcess
from typing import Any

from verl.workers.rollout.vllm.process import FORKED, LOG, PARENT, end_with, end_with_parent, write_to_log

PRELOADED = "verl.workers.rollout.vllm.preloaded"
MOST_SERVERS = 2
# Read by no library when it is loaded: they differ between the engines of one server.
HANDED_OVER = frozenset({PARENT, LOG, "TMPDIR", "VLLM_RPC_BASE_PATH", "PYTEST_CURRENT_TEST"})


class ForkServer(forkserver.ForkServer):
    """A server that ends with this process, as an engine of it ends with the server."""

    def __init__(self) -> None:
        super().__init__()
        self.set_forkserver_preload([__name__, PRELOADED])

    @property
    def pid(self) -> int | None:
        """Of the server's process; None before it is started."""
        return self._forkserver_pid  # type: ignore[attr-defined,no-any-return]

    def ensure_running(self) -> None:
        """Start the server unless it runs.

        Its thread stays: the kernel ends the server with the thread that started it
        (`end_with_parent`), and the one that calls this may end with its engine.
        """
        started: Future[None] = Future()

        def start() -> None:
            before = self.pid
            try:
                super(ForkServer, self).ensure_running()
            except BaseException as error:
                started.set_exception(error)
                return
            started.set_result(None)
            if self.pid != before:
                threading.Event().wait()

        threading.Thread(target=start, name="engine-fork-server", daemon=True).start()
        started.result()

    def let_go(self) -> None:
        """Have the server end as soon as none of its engines is left."""
        if self._forkserver_alive_fd is not None:  # type: ignore[attr-defined]
            # each engine has a copy of it, and the server ends when all are closed
            os.close(self._forkserver_alive_fd)  # type: ignore[attr-defined]


_servers: dict[frozenset[tuple[str, str]], ForkServer] = {}


def server_for(environment: frozenset[tuple[str, str]]) -> ForkServer:
    """Return the server for engines with these variables, which `HANDED_OVER` are not among.

    Each takes about 160 MiB; the oldest is let go for one beyond `MOST_SERVERS`.
    """
    if environment not in _servers:
        if len(_servers) == MOST_SERVERS:
            _servers.pop(next(iter(_servers))).let_go()
        _servers[environment] = ForkServer()
    return _servers[environment]


class _Preparation:
    """What prepares a forked process, before it reads anything else.

    Args:
        variables: of its environment, for all of `HANDED_OVER`; None for one that is not set.
        data: as `multiprocessing` has it for a spawned process.
    """

    def __init__(self, variables: dict[str, str | None], data: dict[str, Any]) -> None:
        self._variables = variables
        self._data = data

    def __reduce__(self) -> tuple[Any, ...]:
        return _prepare, (self._variables, self._data)


def _prepare(variables: dict[str, str | None], data: dict[str, Any]) -> dict[str, Any]:
    """Make the forked process one of its engine: environment, end, output; returns `data`."""
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    tempfile.tempdir = None  # the server may have asked for its own
    end_with(int(os.environ[PARENT]))  # the server may be gone already
    write_to_log()
    return data


class _Popen(popen_forkserver.Popen):
    """As `multiprocessing` starts a process from a fork server, with a server and an environment of
    the engine's own.
    """

    def _launch(self, process_obj: Any) -> None:
        server = server_for(frozenset((k, v) for k, v in os.environ.items() if k not in HANDED_OVER))
        server.ensure_running()
        variables = {name: os.environ.get(name) for name in HANDED_OVER}
        # the process that the engine ends with; that one ends with this one
        variables[PARENT] = str(server.pid)
        preparation = _Preparation(variables, spawn.get_preparation_data(process_obj._name))
        written = io.BytesIO()
        set_spawning_popen(self)
        try:
            reduction.dump(preparation, written)
            reduction.dump(process_obj, written)
        finally:
            set_spawning_popen(None)
        self.sentinel, to_child = server.connect_to_new_process(
            self._fds  # type: ignore[attr-defined]
        )
        # open as long as this process lives, which the forked one can wait for
        parent = os.dup(to_child)
        close_fds = multiprocessing.util.close_fds  # type: ignore[attr-defined]
        self.finalizer = multiprocessing.util.Finalize(self, close_fds, (parent, self.sentinel))
        with open(to_child, "wb") as file:
            file.write(written.getbuffer())
        self.pid = forkserver.read_signed(self.sentinel)


class _Process(BaseProcess):
    """A process of a `Context`."""

    _start_method = "forkserver"

    @staticmethod
    def _Popen(process_obj: Any) -> _Popen:
        return _Popen(process_obj)


class Context(multiprocessing.context.BaseContext):
    """A context of `multiprocessing` whose processes are forked from the server for their
    environment.
    """

    _name = "forkserver"
    Process = _Process


def fork_engines() -> None:
    """Have vLLM fork the processes of engines whose environment says so (`FORKED`). Idempotent."""
    from vllm.v1.engine import utils

    choose = utils.get_mp_context
    if getattr(choose, "forks_engines", False):
        return

    def context() -> Any:
        return Context() if FORKED in os.environ else choose()

    context.forks_engines = True  # type: ignore[attr-defined]
    utils.get_mp_context = context


# A server imports this module first.
end_with_parent()
