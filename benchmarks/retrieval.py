"""Recall and speed of the retrieval server on the generated two-hop questions: many queries per request
against one.

    python benchmarks/retrieval.py [--questions 200] [--train 1000] [--repeats 3]

The server is started as a separate process, as in a run, and used over HTTP by one client.

Recall@k: share of the facts of the test questions that are among the first k documents. `recall_question_k`
uses the question as the query; its second fact shares only a common word with it, so one search can find half
of the facts. `recall_hops_k` uses one query per fact, as a careful Search Agent does.

Speed: distinct queries, so that none is cached. `batched` sends `--batch` queries per request, `concurrent`
one query per request with `--concurrent` requests at a time, `single` one after the other. `cached` repeats
the queries of `single`.

The last line is one JSON object: `recall_question_1`, `recall_question_3`, ..., `recall_hops_1`, ...,
`batched_per_s`, `concurrent_per_s`, `single_per_s`, `cached_per_s`, `speedup` (batched / single; medians of
the repeats), `documents` and `spread`, the lowest and highest repeat.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import aiohttp

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from agent_system.workflows.search.world.local import LocalServer
from agent_system.workflows.search.world.wire import question, read_answer
from benchmarks.shared.short import parse_args
from examples.embedded.search.tasks import Question, generate_split, to_document

logger = logging.getLogger("retrieval")
DEPTHS = (1, 3, 5, 10)
Ask = Callable[[Sequence[str], int], Awaitable[list[list[str]]]]


def asker(session: aiohttp.ClientSession, url: str) -> Ask:
    """Return a function that sends one request and returns the texts for each of its queries."""

    async def ask(queries: Sequence[str], topk: int) -> list[list[str]]:
        async with session.post(url, json=question(queries, topk)) as answer:
            answer.raise_for_status()
            found = read_answer(await answer.json(), len(queries))
        return [[passage.text for passage in passages] for passages in found]

    return ask


async def recall(ask: Ask, questions: Sequence[Question]) -> dict[str, float]:
    """Return recall@k of the questions as queries, and of one query per fact."""
    facts = [[str(fact) for fact in one.hops] for one in questions]
    whole = await ask([one.text for one in questions], max(DEPTHS))
    flat = await ask([fact.query for one in questions for fact in one.hops], max(DEPTHS))
    found: dict[str, float] = {}
    for k in DEPTHS:
        hits = [fact in texts[:k] for wanted, texts in zip(facts, whole, strict=True) for fact in wanted]
        found[f"recall_question_{k}"] = statistics.mean(hits)
    for k in DEPTHS:
        hits = [
            fact in texts[:k]
            for fact, texts in zip([f for wanted in facts for f in wanted], flat, strict=True)
        ]
        found[f"recall_hops_{k}"] = statistics.mean(hits)
    return found


async def queries_per_s(ask: Ask, queries: Sequence[str], batch: int, at_a_time: int = 1) -> float:
    """Return queries per second in requests of `batch`, with `at_a_time` requests in flight."""
    requests = [queries[i : i + batch] for i in range(0, len(queries), batch)]
    places = asyncio.Semaphore(at_a_time)

    async def one(part: Sequence[str]) -> None:
        async with places:
            await ask(part, 3)

    began = time.perf_counter()
    await asyncio.gather(*[one(part) for part in requests])
    return len(queries) / (time.perf_counter() - began)


async def measure(
    url: str, questions: Sequence[Question], words: Sequence[str], args: argparse.Namespace
) -> dict[str, list[float]]:
    """Return all numbers by name, one per repeat."""
    speeds: dict[str, list[float]] = {}
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        ask = asker(session, url)
        found = {name: [value] for name, value in (await recall(ask, questions)).items()}
        for repeat in range(args.repeats):

            def fresh(kind: str, turn: int = repeat) -> list[str]:
                return [f"{words[i % len(words)]} {kind}{turn}x{i}" for i in range(args.queries)]

            singles = fresh("single")
            numbers = {
                "batched_per_s": await queries_per_s(ask, fresh("batched"), args.batch),
                "concurrent_per_s": await queries_per_s(ask, fresh("concurrent"), 1, args.concurrent),
                "single_per_s": await queries_per_s(ask, singles, 1),
                "cached_per_s": await queries_per_s(ask, singles, 1),
            }
            for name, value in numbers.items():
                speeds.setdefault(name, []).append(value)
    speeds["speedup"] = [
        many / one for many, one in zip(speeds["batched_per_s"], speeds["single_per_s"], strict=True)
    ]
    return found | speeds


def main() -> None:
    """Measure and write one line per number, then all of them as JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--train", type=int, default=1000, help="training questions whose facts fill the corpus"
    )
    parser.add_argument("--questions", type=int, default=200, help="test questions, all of two hops")
    parser.add_argument("--queries", type=int, default=512, help="queries per measurement of speed")
    parser.add_argument("--batch", type=int, default=64, help="queries per request")
    parser.add_argument("--concurrent", type=int, default=64, help="requests at a time")
    parser.add_argument("--repeats", type=int, default=3)
    args = parse_args(parser, repeats=1)
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    corpus, _, questions = generate_split(args.train, args.questions, 0, two_hop=1.0)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "corpus.jsonl"
        path.write_text(
            "".join(json.dumps(to_document(fact, number)) + "\n" for number, fact in enumerate(corpus))
        )
        server = LocalServer(str(path), start_timeout_s=300)
        try:
            found = asyncio.run(measure(server.url, questions, [fact.query for fact in corpus], args))
        finally:
            server.close()
    for name, values in found.items():
        logger.info("%s: median %.3f [%.3f, %.3f]", name, statistics.median(values), min(values), max(values))
    result: dict[str, Any] = {name: round(statistics.median(values), 3) for name, values in found.items()}
    spread = {
        name: [round(min(values), 3), round(max(values), 3)]
        for name, values in found.items()
        if len(values) > 1
    }
    logger.info(
        json.dumps(
            result | {"documents": len(corpus), "spread": spread, "load": round(os.getloadavg()[0], 1)}
        )
    )


if __name__ == "__main__":
    main()
