"""Interface of an index, and BM25."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from agent_system.errors import AgentSystemError
from agent_system.workflows.search.world.corpus import Document

Hits = list[tuple[int, float]]


class Index(Protocol):
    """An index, which identifies documents by their number in the corpus."""

    def search(self, queries: Sequence[str], topk: int) -> list[Hits]:
        """Return, for every query, at most `topk` pairs (number of the document, score), best first.

        A query's result must not depend on the other queries. Calls may block; there is only one at a time.
        """


class MissingPackageError(AgentSystemError):
    """An index needs packages that are not installed."""

    def __init__(self, index: str, package: str, extra: str) -> None:
        super().__init__(f'the {index} index needs {package}, which is not installed; pip install "verl-mas[{extra}]"')


class BM25Index:
    """BM25 over words without English stop words (Robertson and Zaragoza 2009; the Lucene variant of the `bm25s` library).

    Documents without a word of the query are not returned.
    """

    def __init__(self, documents: Sequence[Document]) -> None:
        """Index the documents. Raises MissingPackageError without `bm25s`."""
        try:
            import bm25s
        except ImportError as error:
            raise MissingPackageError("BM25", "bm25s", "search") from error
        self._library = bm25s
        self._count = len(documents)
        self._index = bm25s.BM25()
        self._index.index(bm25s.tokenize([d.contents for d in documents], show_progress=False), show_progress=False)

    def search(self, queries: Sequence[str], topk: int) -> list[Hits]:
        """See `Index.search`."""
        words = self._library.tokenize(list(queries), return_ids=False, show_progress=False)
        numbers, scores = self._index.retrieve(words, k=min(topk, self._count), show_progress=False)
        rows = zip(numbers.tolist(), scores.tolist(), strict=True)
        return [[(number, score) for number, score in zip(*row, strict=True) if score > 0] for row in rows]
