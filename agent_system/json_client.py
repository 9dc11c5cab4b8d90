"""The HTTP client of servers that answer JSON to JSON: a chat API, a retrieval server, a sandbox
server.

Servers are not trusted: an answer has a time limit and a size limit, and is returned as bytes.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp

CHUNK_BYTES = 1 << 16
# What a request may raise besides `TooLongError`, where the server cannot be reached or breaks off.
CONNECTION_ERRORS = (aiohttp.ClientError, OSError)


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """An answer.

    Attributes:
        status: the HTTP status.
        headers: names are in any case.
        data: the body.
    """

    status: int
    headers: Mapping[str, str]
    data: bytes

    @property
    def text(self) -> str:
        """The body as text, with a replacement for what is no UTF-8."""
        return self.data.decode("utf-8", "replace")

    def ok_data(self) -> bytes:
        """Return the body. Raise ValueError, which quotes its beginning, for a status other than
        200.
        """
        if self.status != 200:
            raise ValueError(f"HTTP status {self.status}: {self.data[:200]!r}")
        return self.data


class NoAnswerError(TimeoutError):
    """There was no whole answer within the time limit."""


class TooLongError(ValueError):
    """An answer has more bytes than allowed.

    Attributes:
        answer: its beginning.
    """

    def __init__(self, answer: HttpAnswer) -> None:
        super().__init__(f"an answer of more than {len(answer.data)} bytes")
        self.answer = answer


class JsonClient:
    """Posts JSON to one address. Connections belong to an event loop: `close` in it before a
    request from another one.
    """

    def __init__(self, url: str, keepalive_s: float | None = None) -> None:
        """Set the address; connect with the first request.

        Args:
            url: the address, with a password if the server needs one.
            keepalive_s: seconds for which idle connections are kept; None: aiohttp's.
        """
        self._url = url
        self._keepalive_s = keepalive_s
        self._session: aiohttp.ClientSession | None = None

    async def post(
        self, body: Any, *, timeout_s: float, most_bytes: int, headers: Mapping[str, str] | None = None
    ) -> HttpAnswer:
        """Return the answer to a JSON body, whatever its status.

        No redirects: passwords and keys are meant for this server alone.

        Raises:
            NoAnswerError: after `timeout_s` seconds.
            TooLongError: after more than `most_bytes` bytes of an answer.
            CONNECTION_ERRORS: the server cannot be reached, or breaks off.
        """
        try:
            async with asyncio.timeout(timeout_s) as limit:
                return await self._post(json.dumps(body), most_bytes, headers or {})
        except TimeoutError as error:
            # others are an operating system's, or of a limit of the caller
            if not limit.expired():
                raise
            raise NoAnswerError(f"no answer within {timeout_s:g} s") from error

    async def _post(self, text: str, most_bytes: int, headers: Mapping[str, str]) -> HttpAnswer:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=self._connector(), timeout=aiohttp.ClientTimeout(total=None)
            )
        async with self._session.post(
            self._url,
            data=text,
            headers={"Content-Type": "application/json", **headers},
            allow_redirects=False,
        ) as response:
            data = bytearray()
            async for chunk in response.content.iter_chunked(CHUNK_BYTES):
                data += chunk
                if len(data) > most_bytes:
                    raise TooLongError(HttpAnswer(response.status, response.headers, bytes(data)))
            return HttpAnswer(response.status, response.headers, bytes(data))

    def _connector(self) -> aiohttp.TCPConnector:
        if self._keepalive_s is None:
            return aiohttp.TCPConnector(limit=0)
        return aiohttp.TCPConnector(limit=0, keepalive_timeout=self._keepalive_s)

    async def close(self) -> None:
        """Close the connections; a later request makes new ones."""
        session = self._session
        self._session = None
        if session is not None:
            await session.close()
