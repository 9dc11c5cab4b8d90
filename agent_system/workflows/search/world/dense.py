"""Dense retrieval: vectors of a sentence encoder, compared by faiss."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from agent_system.errors import AgentSystemError
from agent_system.workflows.search.world.corpus import Document
from agent_system.workflows.search.world.index import Hits, MissingPackageError


class SentenceEncoder(Protocol):
    """Encoder of texts as vectors, such as `sentence_transformers.SentenceTransformer`."""

    def encode(
        self, sentences: list[str], *, batch_size: int, normalize_embeddings: bool, show_progress_bar: bool
    ) -> Any:
        """Return float32 [len(sentences), dim], of unit length when `normalize_embeddings`."""


def load_encoder(model: str) -> SentenceEncoder:
    """Load a sentence encoder by folder or hub id.

    Raises:
        MissingPackageError: `sentence-transformers` is not installed.
        AgentSystemError: there is no such model.
    """
    try:
        from sentence_transformers import SentenceTransformer
    except ImportError as error:
        raise MissingPackageError("dense", "sentence-transformers", "dense") from error
    try:
        return SentenceTransformer(model)
    except (OSError, ValueError) as error:
        raise AgentSystemError(
            f"no sentence encoder {model!r}: {error}; name a folder or a hub id with --model"
        ) from error


class DenseIndex:
    """Exact search by the inner product of unit vectors.

    Args of the constructor:
        documents: the corpus.
        encoder: see `SentenceEncoder`.
        query_prefix, document_prefix: prefixes with which the encoder was trained (`query: ` and
        `passage: ` for E5). batch_size: texts per call of the encoder.
    """

    def __init__(
        self,
        documents: Sequence[Document],
        encoder: SentenceEncoder,
        *,
        query_prefix: str = "query: ",
        document_prefix: str = "passage: ",
        batch_size: int = 64,
    ) -> None:
        """Encode and index the documents. Raises MissingPackageError without `faiss`."""
        try:
            import faiss
        except ImportError as error:
            raise MissingPackageError("dense", "faiss", "dense") from error
        self._encoder = encoder
        self._query_prefix = query_prefix
        self._batch_size = batch_size
        vectors = self._vectors([document_prefix + d.contents for d in documents])
        self._index = faiss.IndexFlatIP(vectors.shape[1])
        self._index.add(vectors)

    def search(self, queries: Sequence[str], topk: int) -> list[Hits]:
        """See `Index.search`."""
        vectors = self._vectors([self._query_prefix + query for query in queries])
        scores, numbers = self._index.search(vectors, min(topk, self._index.ntotal))
        rows = zip(numbers.tolist(), scores.tolist(), strict=True)
        return [[(number, score) for number, score in zip(*row, strict=True) if number >= 0] for row in rows]

    def _vectors(self, texts: list[str]) -> np.ndarray:
        embeddings = self._encoder.encode(
            texts, batch_size=self._batch_size, normalize_embeddings=True, show_progress_bar=False
        )
        return np.ascontiguousarray(embeddings, dtype=np.float32)
