"""Client of a retrieval server: ours, or any other with Search-R1's `/retrieve`."""

from __future__ import annotations

import asyncio
import json
import threading
from concurrent.futures import Future
from typing import Any

import aiohttp

from agent_system.errors import masked, password
from agent_system.workflows.search.world.wire import Passage, RetrievalError, endpoint, question, read_answer
from verl.utils.names import without_password

LONGEST_ANSWER = 16 << 20
KEEPALIVE_S = 4.0  # less than the five seconds after which many servers drop an idle connection


class RetrievalClient:
    """Client of one server, for any number of threads and event loops.

    Requests are made in an event loop of the client, so that connections outlive the loops of its callers.

    Attributes:
        url: address of `/retrieve`.
    """

    def __init__(self, url: str, *, topk: int, timeout_s: float) -> None:
        self.url = endpoint(url)
        self._shown = without_password(self.url)
        self._topk = topk
        self._timeout_s = timeout_s
        self._session: aiohttp.ClientSession | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="retrieval", daemon=True)
        self._thread.start()

    async def search(self, query: str) -> list[Passage]:
        """Return the passages of one query, best first.

        Raises:
            RetrievalError: no answer within the time limit, or an invalid one; the message names the server
                and its answer.
        """
        return await asyncio.wrap_future(self._submit(query))

    def search_now(self, query: str) -> list[Passage]:
        """Blocking version of `search`, for callers without an event loop."""
        return self._submit(query).result()

    def close(self) -> None:
        """Close the connections. The client cannot be used again."""
        if self._loop.is_running():
            asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def _submit(self, query: str) -> Future[list[Passage]]:
        if not self._loop.is_running():
            raise RetrievalError(f"the client of {self._shown} is closed; make another one")
        return asyncio.run_coroutine_threadsafe(self._search(query), self._loop)

    async def _end(self) -> None:
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        if self._session is not None:
            await self._session.close()

    async def _search(self, query: str) -> list[Passage]:
        if self._session is None:
            connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEPALIVE_S)
            self._session = aiohttp.ClientSession(
                connector=connector, timeout=aiohttp.ClientTimeout(total=None)
            )
        try:
            async with asyncio.timeout(self._timeout_s):
                return read_answer(await self._post(self._session, query), 1)[0]
        except TimeoutError as error:
            raise RetrievalError(
                f"{self._shown} gave no answer within env.params.timeout_s={self._timeout_s:g} s"
            ) from error
        except (aiohttp.ClientError, OSError) as error:
            cause = f"{type(error).__name__}: {masked(str(error), password(self.url))}"
            raise RetrievalError(
                f"the request to {self._shown} failed: {cause}; is the retrieval server running?"
            ) from error
        except (ValueError, RecursionError) as error:
            raise RetrievalError(
                f"{self._shown} does not answer as Search-R1's /retrieve does: {error}"
            ) from error

    async def _post(self, session: aiohttp.ClientSession, query: str) -> Any:
        """Return the answer's JSON. Raises ValueError for an answer that is too long, is not JSON, or has a
        status other than 200.
        """
        body = json.dumps(question([query], self._topk))
        async with session.post(
            self.url, data=body, headers={"Content-Type": "application/json"}, allow_redirects=False
        ) as answer:
            text = bytearray()
            async for chunk in answer.content.iter_chunked(1 << 16):
                text += chunk
                if len(text) > LONGEST_ANSWER:
                    raise ValueError(f"it sent more than {LONGEST_ANSWER} bytes")
        if answer.status != 200:
            raise ValueError(f"HTTP status {answer.status}: {bytes(text[:200])!r}")
        try:
            return json.loads(text)
        except ValueError as error:
            raise ValueError(f"found no JSON: {bytes(text[:80])!r}") from error
