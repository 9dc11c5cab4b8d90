"""Retrieval of passages: a corpus, its indexes, a server on loopback, and the client for it or
another server.
"""

from agent_system.workflows.search.world.corpus import CorpusError, Document, load_corpus
from agent_system.workflows.search.world.wire import Passage, RetrievalError

__all__ = ["CorpusError", "Document", "Passage", "RetrievalError", "load_corpus"]
