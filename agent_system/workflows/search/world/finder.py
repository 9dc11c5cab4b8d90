"""Batched and cached search for queries that arrive one by one."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from agent_system.workflows.search.world.corpus import Document
from agent_system.workflows.search.world.index import Hits, Index

Key = tuple[str, int]


class Finder:
    """Batched and cached search for one event loop.

    The index is called in one thread, with the queries that have arrived while it was busy, at most
    `max_batch`.

    Attributes:
        documents: the corpus.
        batches: number of calls of the index.
        cached: number of queries answered from the cache.
    """

    def __init__(
        self, documents: Sequence[Document], index: Index, *, max_batch: int = 64, cache_size: int = 65_536
    ) -> None:
        self.documents = documents
        self.batches = 0
        self.cached = 0
        self._index = index
        self._max_batch = max_batch
        self._cache_size = cache_size
        self._cached_hits: OrderedDict[Key, Hits] = OrderedDict()
        self._pending: dict[Key, asyncio.Future[Hits]] = {}
        self._waiting: list[Key] = []
        self._busy: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="index")

    async def find(self, queries: Sequence[str], topk: int) -> list[list[tuple[Document, float]]]:
        """Return the best documents of every query with their scores. Raises the errors of the
        index.
        """
        hits = await asyncio.gather(*[self._one((query, topk)) for query in queries])
        return [[(self.documents[number], score) for number, score in query_hits] for query_hits in hits]

    def close(self) -> None:
        """Shut down the thread."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _one(self, key: Key) -> Hits:
        if key in self._cached_hits:
            self.cached += 1
            self._cached_hits.move_to_end(key)
            return self._cached_hits[key]
        if key not in self._pending:
            self._pending[key] = asyncio.get_running_loop().create_future()
            self._waiting.append(key)
            if self._busy is None or self._busy.done():
                self._busy = asyncio.create_task(self._work())
        # Several callers may wait for one search: the cancellation of one must not cancel it for
        # the others.
        return await asyncio.shield(self._pending[key])

    async def _work(self) -> None:
        while self._waiting:
            topk = self._waiting[0][1]
            batch = [key for key in self._waiting if key[1] == topk][: self._max_batch]
            batch_keys = set(batch)
            self._waiting = [key for key in self._waiting if key not in batch_keys]
            await self._search(batch, topk)

    async def _search(self, batch: list[Key], topk: int) -> None:
        self.batches += 1
        loop = asyncio.get_running_loop()
        try:
            batch_hits = await loop.run_in_executor(
                self._thread, self._index.search, [query for query, _ in batch], topk
            )
        except Exception as error:
            # any error of an index is passed on to the query that caused it
            if len(batch) > 1:
                for key in batch:
                    await self._search([key], topk)
                return
            future = self._pending.pop(batch[0])
            future.set_exception(error)
            # marks the exception as retrieved: all callers may have been cancelled
            future.exception()
            return
        for key, hits in zip(batch, batch_hits, strict=True):
            self._cached_hits[key] = hits
            self._pending.pop(key).set_result(hits)
        while len(self._cached_hits) > self._cache_size:
            self._cached_hits.popitem(last=False)
