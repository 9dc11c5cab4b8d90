"""The HTTP server: of a run's episodes, in whose event loop it runs, or of a served team. It keeps
its port.
"""

from __future__ import annotations

import asyncio
import hmac
import re
import resource
import socket
from collections import OrderedDict

from aiohttp import web

from agent_system.gateway.episode_requests import EpisodeRequests
from agent_system.gateway.errors import Refusal
from agent_system.gateway.responder import OVER, Responder
from agent_system.gateway.routes import Routes

BACKLOG = 1024
REMEMBERED_KEYS = 4096
# both ends of a program's connection are in this process; systems allow 1024 unless they are asked
# for more
SOCKETS = 65536


class Server:
    """Answers the requests of episodes in progress, on the loopback interface."""

    def __init__(self, host: str = "127.0.0.1", port: int = 0, cancels_on_leave: bool = False) -> None:
        """Set the address, where 0 is a free port; with `cancels_on_leave` the handler of a client
        that leaves is cancelled.
        """
        self._host = host
        self._port = port
        self._cancels_on_leave = cancels_on_leave
        self._open: dict[str, EpisodeRequests] = {}
        self._ended: OrderedDict[str, None] = OrderedDict()
        self._socket: socket.socket | None = None
        self._runner: web.AppRunner | None = None
        self._starting = asyncio.Lock()

    async def start(self) -> str:
        """Listen, unless it does already; return the address. Raises OSError if that is not
        possible.
        """
        async with self._starting:
            if self._runner is None:
                if self._socket is None:
                    _allow_sockets()
                    family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
                    self._socket = socket.create_server(
                        (self._host, self._port), family=family, backlog=BACKLOG
                    )
                runner = web.AppRunner(
                    self._app(),
                    access_log=None,
                    shutdown_timeout=1.0,
                    handler_cancellation=self._cancels_on_leave,
                )
                await runner.setup()
                # A copy, so that the port stays bound when this event loop stops listening.
                await web.SockSite(runner, self._socket.dup(), backlog=BACKLOG).start()
                self._runner = runner
        assert self._socket is not None
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{self._socket.getsockname()[1]}"

    async def stop(self) -> None:
        """Stop listening in this event loop; the port stays bound."""
        async with self._starting:
            runner = self._runner
            self._runner = None
            if runner is not None:
                await runner.cleanup()
        self._starting = asyncio.Lock()  # the next event loop needs its own

    def open(self, requests: EpisodeRequests) -> None:
        """Accept the key of an episode."""
        self._open[requests.key] = requests

    def end(self, requests: EpisodeRequests) -> None:
        """Refuse the key of an episode from now on."""
        del self._open[requests.key]
        self._ended[requests.key] = None
        if len(self._ended) > REMEMBERED_KEYS:
            self._ended.popitem(last=False)

    def _app(self) -> web.Application:
        return Routes(self._responder_of).app()

    def _responder_of(self, http: web.Request) -> Responder:
        key = _key_of(http)
        # A late request is told that its episode is over, and not that its key is wrong.
        if key in self._ended:
            raise Refusal(OVER, code="episode_over")
        if key not in self._open:
            raise Refusal("no episode has this API key; use session.api_key", 401, "invalid_api_key")
        return self._open[key]


class TeamServer(Server):
    """The HTTP server of a team, with one key for all clients, or none."""

    def __init__(self, team: Responder, host: str, port: int, key: str) -> None:
        """Set the address; an empty key accepts any."""
        super().__init__(host, port, cancels_on_leave=True)
        self._team = team
        self._key = key

    def _responder_of(self, http: web.Request) -> Responder:
        key = _key_of(http)
        if self._key and not hmac.compare_digest(
            key.encode("utf-8", "surrogateescape"), self._key.encode("utf-8", "surrogateescape")
        ):
            raise Refusal("wrong API key", 401, "invalid_api_key")
        # any page in a browser of this machine can reach the loopback interface
        if not self._key and "Origin" in http.headers:
            raise Refusal(
                "a web page asks; serve the team with --api-key-env to answer those that know the key",
                403,
                "no_api_key",
            )
        return self._team


def _key_of(http: web.Request) -> str:
    """Return the key in a request's headers; the word Bearer before it may be in any case, or
    missing.
    """
    return re.sub("^bearer ", "", http.headers.get("Authorization", ""), flags=re.IGNORECASE).strip()


def _allow_sockets() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= soft < SOCKETS:  # negative: no limit
        resource.setrlimit(resource.RLIMIT_NOFILE, (SOCKETS if hard < 0 else min(hard, SOCKETS), hard))
