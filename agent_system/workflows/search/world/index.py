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
        """Return, for every query, at most `topk` pairs (number of the document, score), best
        first.

        A query's result must not depend on the other queries. Calls may block; there is only one at
        a time.
        """


class MissingPackageError(AgentSystemError):
    """An index needs packages that are not installed."""

    def __init__(self, index: str, package: str, extra: str) -> None:
        super().__init__(
            f'the {index} index needs {package}, which is not installed; pip install "verl-mas[{extra}]"'
        )


class BM25Index:
    """BM25 over stems of English words, and characters of other scripts (Robertson and Zaragoza
    2009; Lucene's variant in `bm25s`).

    Documents without a word of the query are not returned.
    """

    def __init__(self, documents: Sequence[Document]) -> None:
        """Index the documents. Raises MissingPackageError without `bm25s` or its stemmer."""
        try:
            import bm25s
            import Stemmer  # noqa: F401
        except ImportError as error:
            raise MissingPackageError(
                "BM25", "PyStemmer" if error.name == "Stemmer" else "bm25s", "search"
            ) from error
        from agent_system.workflows.search.world.words import WordSplitter

        self._words = WordSplitter()
        self._count = len(documents)
        self._numbers: dict[str, int] = {"": 0}
        numbered = [self._numbered(document.contents) for document in documents]
        self._index = bm25s.BM25()
        self._index.index(bm25s.tokenization.Tokenized(numbered, self._numbers), show_progress=False)

    def _numbered(self, text: str) -> list[int]:
        return [self._numbers.setdefault(word, len(self._numbers)) for word in self._words.of(text)]

    def search(self, queries: Sequence[str], topk: int) -> list[Hits]:
        """See `Index.search`."""
        words = [
            [word for word in self._words.of(query) if word in self._numbers] or [""] for query in queries
        ]
        numbers, scores = self._index.retrieve(words, k=min(topk, self._count), show_progress=False)
        rows = zip(numbers.tolist(), scores.tolist(), strict=True)
        return [[(number, score) for number, score in zip(*row, strict=True) if score > 0] for row in rows]
