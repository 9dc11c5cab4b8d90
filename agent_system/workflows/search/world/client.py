"""Client of a retrieval server: ours, or any other with Search-R1's `/retrieve`."""

from __future__ import annotations

import asyncio
import json
from concurrent.futures import Future
from typing import Any

from agent_system.errors import masked, password
from agent_system.json_client import CONNECTION_ERRORS, JsonClient, TooLongError
from agent_system.workflows.search.world.wire import Passage, RetrievalError, endpoint, question, read_answer
from verl.utils.loop_thread import LoopThread
from verl.utils.names import without_password

LONGEST_ANSWER = 16 << 20
# less than the five seconds after which many servers drop an idle connection
KEEPALIVE_S = 4.0


class RetrievalClient:
    """Client of one server, for any number of threads and event loops.

    Requests are made in an event loop of the client, so that connections outlive the loops of its
    callers.

    Attributes:
        url: address of `/retrieve`.
    """

    def __init__(self, url: str, *, topk: int, timeout_s: float) -> None:
        self.url = endpoint(url)
        self._shown_url = without_password(self.url)
        self._topk = topk
        self._timeout_s = timeout_s
        self._client = JsonClient(self.url, KEEPALIVE_S)
        self._loop = LoopThread("retrieval")

    async def search(self, query: str) -> list[Passage]:
        """Return the passages of one query, best first.

        Raises:
            RetrievalError: no answer within the time limit, or an invalid one; the message names
                the server and its answer.
        """
        return await asyncio.wrap_future(self._submit(query))

    def search_now(self, query: str) -> list[Passage]:
        """Blocking version of `search`, for callers without an event loop."""
        return self._submit(query).result()

    def close(self) -> None:
        """Close the connections. The client cannot be used again."""
        self._loop.close(self._client.close)

    def _submit(self, query: str) -> Future[list[Passage]]:
        if self._loop.closed:
            raise RetrievalError(f"the client of {self._shown_url} is closed; make another one")
        return self._loop.submit(self._search(query))

    async def _search(self, query: str) -> list[Passage]:
        try:
            return read_answer(await self._post(query), 1)[0]
        except TimeoutError as error:
            raise RetrievalError(
                f"{self._shown_url} gave no answer within env.params.timeout_s={self._timeout_s:g} s"
            ) from error
        except CONNECTION_ERRORS as error:
            cause = f"{type(error).__name__}: {masked(str(error), password(self.url))}"
            raise RetrievalError(
                f"the request to {self._shown_url} failed: {cause}; is the retrieval server running?"
            ) from error
        except (ValueError, RecursionError) as error:
            raise RetrievalError(
                f"{self._shown_url} does not answer as Search-R1's /retrieve does: {error}"
            ) from error

    async def _post(self, query: str) -> Any:
        """Return the answer's JSON. Raises ValueError for an answer that is too long, is not JSON,
        or has a status other than 200.
        """
        body = question([query], self._topk)
        try:
            answer = await self._client.post(body, timeout_s=self._timeout_s, most_bytes=LONGEST_ANSWER)
        except TooLongError as error:
            raise ValueError(f"it sent more than {LONGEST_ANSWER} bytes") from error
        data = answer.ok_data()
        try:
            return json.loads(data)
        except ValueError as error:
            raise ValueError(f"found no JSON: {data[:80]!r}") from error
