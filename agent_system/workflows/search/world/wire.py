"""The protocol of Search-R1's `/retrieve`, request and answer as JSON:

    {"queries": ["who wrote Faust"], "topk": 3, "return_scores": true}
    {"result": [[{"document": {"id": "7", "contents": "\\"Faust\\"\\nFaust is a play ..."}, "score":
    11.2}]]}

Without `return_scores` an entry is the document itself.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from agent_system.workflows.search.world.corpus import Document, split_contents

PATH = "/retrieve"
LARGEST = sys.float_info.max


class RetrievalError(RuntimeError):
    """A search failed independently of the query: the server is unreachable, slow, or violates the
    protocol.
    """


@dataclass(frozen=True, slots=True)
class Passage:
    """A retrieved document.

    Attributes:
        title: may be empty.
        text: the text without the title.
        score: score of the index; higher is better.
    """

    title: str
    text: str
    score: float = 0.0


def endpoint(url: str) -> str:
    """Return the address of `/retrieve` of a server whose `url` may omit it."""
    return url.rstrip("/").removesuffix(PATH) + PATH


def question(queries: Sequence[str], topk: int) -> dict[str, Any]:
    """Return the body of a request; a lone surrogate, which cannot be encoded, becomes a question
    mark.
    """
    whole = [query.encode("utf-8", "replace").decode("utf-8") for query in queries]
    return {"queries": whole, "topk": topk, "return_scores": True}


def answer(results: Sequence[Sequence[tuple[Document, float]]], return_scores: bool) -> dict[str, Any]:
    """Return the body of the answer with these documents."""
    return {
        "result": [[_entry(document, score, return_scores) for document, score in hits] for hits in results]
    }


def read_answer(payload: Any, queries: int) -> list[list[Passage]]:
    """Return the passages of every query, best first.

    Raises:
        ValueError: the answer violates the protocol.
    """
    result = payload.get("result") if isinstance(payload, dict) else None
    if not isinstance(result, list):
        payload_description = (
            f"the fields {', '.join(map(str, payload))}"
            if isinstance(payload, dict)
            else type(payload).__name__
        )
        raise ValueError(f"expected an object with a list 'result', found {payload_description:.200}")
    if len(result) != queries or not all(isinstance(hits, list) for hits in result):
        raise ValueError(f"expected a list of documents for each of {queries} queries, found {result!r:.200}")
    return [[_passage(hit) for hit in hits] for hits in result]


def _entry(document: Document, score: float, return_scores: bool) -> dict[str, Any]:
    plain = {"id": document.id, "contents": document.contents}
    return {"document": plain, "score": score} if return_scores else plain


def _passage(hit: Any) -> Passage:
    document = hit.get("document", hit) if isinstance(hit, dict) else None
    if not isinstance(document, dict) or not isinstance(
        contents := document.get("contents", document.get("text")), str
    ):
        raise ValueError(f"expected a document with a text 'contents', found {hit!r:.200}")
    score = hit.get("score", 0.0)
    if isinstance(score, bool) or not isinstance(score, int | float) or not abs(score) <= LARGEST:
        raise ValueError(f"expected a finite score, found {score!r:.200}")
    title, text = split_contents(contents)
    named = document.get("title")
    return Passage(title or (named if isinstance(named, str) else ""), text, float(score))
