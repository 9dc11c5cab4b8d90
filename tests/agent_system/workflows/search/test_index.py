import sys

import numpy as np
import pytest

from agent_system.workflows.search.world.corpus import load_corpus
from agent_system.workflows.search.world.dense import DenseIndex, load_encoder
from agent_system.workflows.search.world.index import BM25Index, MissingPackageError


@pytest.fixture(scope="module")
def documents(corpus):
    return load_corpus(corpus)


@pytest.fixture(scope="module")
def bm25(documents):
    return BM25Index(documents)


def test_bm25_puts_the_document_with_the_rare_words_first(bm25):
    (first, *_), (second, *_) = bm25.search(["author of Tamo", "where is the birthplace of kilu?"], 2)
    assert (first[0], second[0]) == (0, 2)
    assert first[1] > 0


@pytest.mark.parametrize("query", ["zzz", "", "the of", "\x00\ud800", "?!"])
def test_bm25_finds_nothing_for_a_query_without_a_word_of_the_corpus(bm25, query):
    assert bm25.search([query], 3) == [[]]


def test_a_bm25_result_does_not_depend_on_the_other_queries(bm25):
    queries = ["Tamo", "town", "zzz", "author Kilu", "Dena"]
    assert bm25.search(queries, 2) == [bm25.search([query], 2)[0] for query in queries]


def test_more_documents_than_there_are_is_all_that_fit(bm25):
    assert sorted(number for number, _ in bm25.search(["Tamo or Dena"], 50)[0]) == [0, 1, 2, 3]
    assert [number for number, _ in bm25.search(["town"], 50)[0]] == [3]


class Letters:
    """A stand-in for a sentence encoder: how often each letter occurs."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def encode(self, sentences, *, batch_size, normalize_embeddings, show_progress_bar):
        assert normalize_embeddings and not show_progress_bar and batch_size > 0
        self.seen += sentences
        counts = np.array(
            [[text.lower().count(chr(97 + i)) for i in range(26)] for text in sentences], dtype=np.float64
        )
        return counts / np.maximum(np.linalg.norm(counts, axis=1, keepdims=True), 1e-9)


def test_the_dense_index_compares_vectors_and_says_query_and_passage(documents):
    encoder = Letters()
    index = DenseIndex(documents, encoder)
    assert all(text.startswith("passage: ") for text in encoder.seen)
    hits = index.search([documents[2].contents, "zz"], 3)
    assert hits[0][0][0] == 2
    assert [len(found) for found in hits] == [3, 3]
    assert hits[0] == sorted(hits[0], key=lambda hit: -hit[1])
    assert encoder.seen[-2:] == ["query: " + documents[2].contents, "query: zz"]
    assert len(index.search(["a"], 99)[0]) == len(documents)


@pytest.mark.parametrize(
    ("package", "make"),
    [
        ("bm25s", lambda documents: BM25Index(documents)),
        ("faiss", lambda documents: DenseIndex(documents, Letters())),
        ("sentence_transformers", lambda documents: load_encoder("some/model")),
    ],
)
def test_an_index_without_its_package_says_what_to_install(package, make, documents, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingPackageError, match=r'not installed; pip install "verl-mas\[(search|dense)\]"'):
        make(documents)
