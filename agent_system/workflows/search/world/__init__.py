"""Passages for queries: a corpus, its indexes, a server on loopback, and the client that asks it or another one."""

from agent_system.workflows.search.world.corpus import CorpusError, Document, load_corpus
from agent_system.workflows.search.world.wire import Passage, RetrievalError

__all__ = ["CorpusError", "Document", "Passage", "RetrievalError", "load_corpus"]
