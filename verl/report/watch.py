"""Serve the page of a run while it goes on, on this machine alone:

verl-mas watch RUN [--port 8377]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hmac
import json
import logging
import re
import secrets
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from aiohttp import web

from verl.report.folder import ReportError
from verl.report.live import LiveReport
from verl.report.pack import packed
from verl.report.page import html_page
from verl.trainer.config.command import fail
from verl.utils.plain import to_bytes

logger = logging.getLogger(__name__)

LOOPBACK = "127.0.0.1"
PORT = 8377
# Names of this machine that a browser may ask for; the port differs behind `ssh -L`.
HOSTS = ("127.0.0.1", "localhost", "[::1]")
POLL_S = 1.0
# Seconds after which a silent stream has a comment, so that a reader who has gone is noticed.
_ALIVE_S = 15.0
HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; exit with 1 and a one-line error if there is nothing to serve."""
    parser = argparse.ArgumentParser(
        prog="verl-mas watch",
        epilog="See docs/report.md.",
        description="Serve the page of a run while it goes on, on this machine alone.",
    )
    parser.add_argument("run", metavar="RUN", type=Path, help="folder of the run")
    parser.add_argument("--port", type=int, default=PORT, help="default: %(default)s; 0: a free one")
    options = parser.parse_args(arguments)
    try:
        with contextlib.suppress(KeyboardInterrupt):
            asyncio.run(_serve(LiveReport(options.run), options.port))
    except ReportError as error:
        fail(str(error), 1)
    except (OSError, OverflowError) as error:
        fail(f"port {options.port} of {LOOPBACK} cannot be used: {error}; choose another --port, or 0", 1)


async def _serve(report: LiveReport, port: int) -> None:
    server = WatchServer(report)
    async with server.running(port) as address:
        sys.stdout.write(f"{address}\n")
        sys.stdout.flush()
        await asyncio.Event().wait()


class WatchServer:
    """Serves a live report at an address with a random token; it has no request that writes.

    Args:
        report: of the run.
        poll_s: seconds between two looks at the files.
    """

    def __init__(self, report: LiveReport, poll_s: float = POLL_S) -> None:
        self.report = report
        self.token = secrets.token_urlsafe(24)
        self._poll_s = poll_s
        self._changed = asyncio.Condition()
        self._closing = False
        # Requests and the reader of files see one state of the report.
        self._lock = asyncio.Lock()

    @contextlib.asynccontextmanager
    async def running(self, port: int) -> Any:
        """Serve inside the block, whose value is the address.

        Raises:
            OSError: the port is in use.
        """
        app = web.Application(middlewares=[self._guard])
        app.router.add_get("/{token}/", self._page)
        app.router.add_get("/{token}/index", self._index)
        app.router.add_get("/{token}/chunk/{number}", self._chunk)
        app.router.add_get("/{token}/events", self._events)
        # An access log would have the token.
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await runner.setup()
        poller = asyncio.create_task(self._poll())
        try:
            site = web.TCPSite(runner, LOOPBACK, port)
            await site.start()
            bound = runner.addresses[0][1]
            yield f"http://{LOOPBACK}:{bound}/{self.token}/"
        finally:
            self._closing = True
            async with self._changed:
                self._changed.notify_all()
            poller.cancel()
            await asyncio.gather(poller, return_exceptions=True)
            await runner.cleanup()

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Refuse hosts of other names, which a page of another site may point here, and other
        tokens.
        """
        try:
            if (request.host or "").rpartition(":")[0] not in HOSTS and request.host not in HOSTS:
                raise web.HTTPForbidden(text=f"this server answers to {', '.join(HOSTS)} only\n")
            # the path of `OPTIONS *` has no slash
            token = f"{request.path}/".split("/")[1].encode("utf-8", "surrogatepass")
            if not hmac.compare_digest(token, self.token.encode("ascii")):
                raise web.HTTPNotFound(text="the address has a wrong token\n")
            response = await handler(request)
        except web.HTTPException as refusal:
            refusal.headers.update(HEADERS)
            raise
        if not response.prepared:
            response.headers.update(HEADERS)
        return response

    async def _page(self, request: web.Request) -> web.Response:
        async with self._lock:
            index = self.report.index()
            page = await asyncio.to_thread(
                lambda: html_page(
                    f"{index['runs'][0]['name']} - verl-mas watch", {"index": packed(index)}, True
                )
            )
        return web.Response(text=page, content_type="text/html")

    async def _index(self, request: web.Request) -> web.Response:
        parts = request.query["parts"].split(",") if "parts" in request.query else None
        after = [_count(part) for part in request.query.get("after", "0,0").split(",")]
        if len(after) != 2 or None in after:
            raise web.HTTPBadRequest(text="expected after=EPISODES,CALLS, two numbers of rows\n")
        async with self._lock:
            index = self.report.index(parts, (after[0] or 0, after[1] or 0))
            return await _json(index)

    async def _chunk(self, request: web.Request) -> web.Response:
        number = _count(request.match_info["number"])
        async with self._lock:
            chunk = None if number is None else self.report.chunk(number)
        if chunk is None:
            raise web.HTTPNotFound(text="no such chunk\n")
        return await _json(chunk)

    async def _events(self, request: web.Request) -> web.StreamResponse:
        """Send the names of changed parts as server-sent events, from a version on."""
        since = _count(request.query.get("since", ""))
        version = self.report.version if since is None else since
        response = web.StreamResponse(headers=HEADERS | {"Content-Type": "text/event-stream"})
        await response.prepare(request)
        with contextlib.suppress(ConnectionResetError):  # the browser was closed
            await self._send_events(response, version)
        return response

    async def _send_events(self, response: web.StreamResponse, version: int) -> None:
        while True:
            try:
                # Looked at again under the lock: what changed while an event was written is announced
                # before this stream waits.
                async with self._changed:
                    is_due = self._changed.wait_for(
                        lambda last=version: self._closing or self.report.version > last  # type: ignore[misc]
                    )
                    await asyncio.wait_for(is_due, _ALIVE_S)
            except TimeoutError:
                await response.write(b": alive\n\n")
                continue
            if self._closing:
                return
            # A look at the files that is in progress has changed a part of the report.
            async with self._lock:
                event = {
                    "changed": self.report.changed_since(version),
                    "version": self.report.version,
                    "episodes": [self.report.run["episodes"]["length"]],
                }
                version = self.report.version
            await response.write(f"data: {json.dumps(event)}\n\n".encode("ascii"))

    async def _poll(self) -> None:
        reported = ""
        while True:
            await asyncio.sleep(self._poll_s)
            try:
                async with self._lock:
                    is_changed = await asyncio.to_thread(self.report.refresh)
            except Exception as error:
                # Such as of a file that was moved away between two looks: the next look finds what is there.
                if str(error) != reported:
                    logger.warning("the run cannot be read: %s: %s", type(error).__name__, error)
                reported = str(error)
                continue
            if is_changed:
                async with self._changed:
                    self._changed.notify_all()


def _count(text: str) -> int | None:
    """Return a number of a request; None for what is none."""
    return int(text) if re.fullmatch("[0-9]{1,9}", text) else None


async def _json(value: Any) -> web.Response:
    body = await asyncio.to_thread(to_bytes, value)
    response = web.Response(body=body, content_type="application/json")
    response.enable_compression()
    return response


if __name__ == "__main__":
    main()
