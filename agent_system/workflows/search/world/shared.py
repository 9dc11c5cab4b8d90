"""The retriever shared by all environments of a process: a server at a URL, or one started here for
a corpus.
"""

from __future__ import annotations

import asyncio
import atexit
import threading
from functools import lru_cache

from agent_system.workflows.search.world.client import RetrievalClient
from agent_system.workflows.search.world.local import LocalServer
from agent_system.workflows.search.world.wire import Passage, RetrievalError


class Retriever:
    """A client and, for a corpus, its server, which is started with the first query and again if it
    has ended.

    Args of the constructor:
        corpus: file for which a server is started, unless `url` is given.
        url: address of a running server.
        topk: passages per query.
        timeout_s: time limit of a search in seconds.
        start_timeout_s: time limit for the start of a server of a `corpus`, in seconds.
        max_query_chars: longest query that the server of a `corpus` accepts.
    """

    def __init__(
        self,
        *,
        corpus: str = "",
        url: str = "",
        topk: int = 3,
        timeout_s: float = 30.0,
        start_timeout_s: float = 600.0,
        max_query_chars: int = 2000,
    ) -> None:
        self._corpus = corpus
        self._url = url
        self._topk = topk
        self._timeout_s = timeout_s
        self._start_timeout_s = start_timeout_s
        self._limits = ("--timeout", f"{timeout_s:g}", "--max-query-chars", str(max_query_chars))
        self._client: RetrievalClient | None = None
        self._server: LocalServer | None = None
        self._failure = ""
        self._lock = threading.Lock()
        atexit.register(self.close)

    async def search(self, query: str) -> list[Passage]:
        """Return the passages of one query, best first.

        Raises:
            RetrievalError: the server cannot be started, or the search fails
                (`RetrievalClient.search`).
        """
        client = self._ready() or await asyncio.to_thread(self.start)
        return await client.search(query)

    def start(self) -> RetrievalClient:
        """Return the client; start the server of a corpus first if it is not running."""
        with self._lock:
            client = self._ready()
            if client is None:
                self._close()
                url = self._url or self._start_server()
                client = self._client = RetrievalClient(url, topk=self._topk, timeout_s=self._timeout_s)
            return client

    @property
    def server(self) -> LocalServer | None:
        """The server started here, if any."""
        return self._server

    def close(self) -> None:
        """Close the connections and end the server. A retriever that is used again starts new ones."""
        with self._lock:
            self._failure = ""
            self._close()

    def _start_server(self) -> str:
        """Return its address. A failed start is not repeated: each waiting caller would wait for
        the whole time limit in turn.
        """
        if self._failure:
            raise RetrievalError(self._failure)
        try:
            self._server = LocalServer(
                self._corpus, start_timeout_s=self._start_timeout_s, arguments=self._limits
            )
        except RetrievalError as error:
            self._failure = str(error)
            raise
        return self._server.url

    def _ready(self) -> RetrievalClient | None:
        return self._client if self._url or (self._server is not None and self._server.alive) else None

    def _close(self) -> None:
        client = self._client
        self._client = None
        server = self._server
        self._server = None
        if client is not None:
            client.close()
        if server is not None:
            server.close()


@lru_cache(maxsize=8)
def shared_retriever(
    corpus: str, url: str, topk: int, timeout_s: float, start_timeout_s: float, max_query_chars: int
) -> Retriever:
    """Return the retriever of these options."""
    return Retriever(
        corpus=corpus,
        url=url,
        topk=topk,
        timeout_s=timeout_s,
        start_timeout_s=start_timeout_s,
        max_query_chars=max_query_chars,
    )
