"""A retrieval server with Search-R1's `/retrieve`:

    python -m agent_system.workflows.search.world.server --corpus wiki.jsonl --port 8000
    python -m agent_system.workflows.search.world.server --corpus wiki.jsonl --port 8000 --index
    dense --model intfloat/e5-base-v2

writes its address to standard output when it is ready. It listens on 127.0.0.1 unless `--host` is
given, and has no password.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import socket
import sys
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from agent_system.errors import AgentSystemError
from agent_system.workflows.search.world.corpus import Document, load_corpus
from agent_system.workflows.search.world.finder import Finder
from agent_system.workflows.search.world.index import BM25Index, Index, MissingPackageError
from agent_system.workflows.search.world.wire import PATH, answer

try:
    import uvicorn
    from fastapi import FastAPI, HTTPException
    from pydantic import BaseModel, Field
except ImportError as missing:
    raise MissingPackageError("retrieval server's", str(missing.name), "search") from missing

logger = logging.getLogger(__name__)
EXIT_TIMEOUT_S = 10.0


@dataclass(frozen=True)
class RequestLimits:
    """Limits of one request.

    Attributes:
        max_queries: queries per request.
        max_query_chars: characters per query.
        max_topk: documents per query.
        timeout_s: seconds until the request is answered with status 504.
    """

    max_queries: int = 512
    max_query_chars: int = 2000
    max_topk: int = 100
    timeout_s: float = 30.0


class RetrieveBody(BaseModel):
    """The body of `/retrieve`."""

    queries: list[str] = Field(min_length=1)
    topk: int = Field(default=3, ge=1)
    return_scores: bool = False


def create_app(finder: Finder, limits: RequestLimits) -> FastAPI:
    """Return the application that serves one corpus."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        finder.close()

    app = FastAPI(title="retrieval", lifespan=lifespan)

    @app.get("/health")
    async def health() -> dict[str, Any]:
        return {"documents": len(finder.documents), "batches": finder.batches, "cached": finder.cached}

    @app.post(PATH)
    async def retrieve(query: RetrieveBody) -> dict[str, Any]:
        check_limits(query, limits)
        try:
            async with asyncio.timeout(limits.timeout_s):
                results = await finder.find(query.queries, query.topk)
        except TimeoutError as error:
            raise HTTPException(504, f"the search took longer than {limits.timeout_s:g} s") from error
        return answer(results, query.return_scores)

    return app


def check_limits(query: RetrieveBody, limits: RequestLimits) -> None:
    """Raise HTTPException for a request over the limits, naming the limit."""
    longest = max(map(len, query.queries))
    for amount, most, what in (
        (len(query.queries), limits.max_queries, "queries in one request"),
        (longest, limits.max_query_chars, "characters in one query"),
        (query.topk, limits.max_topk, "documents per query (topk)"),
    ):
        if amount > most:
            raise HTTPException(413, f"{amount} {what}; at most {most}")


def build_index(documents: Sequence[Document], args: argparse.Namespace) -> Index:
    """Return the index of the corpus that the command line selects."""
    if args.index == "bm25":
        return BM25Index(documents)
    from agent_system.workflows.search.world.dense import DenseIndex, load_encoder

    prefixes = {"query_prefix": args.query_prefix, "document_prefix": args.document_prefix}
    return DenseIndex(documents, load_encoder(args.model), **prefixes)


def serve(app: FastAPI, host: str, port: int, *, until_stdin_closes: bool = False) -> None:
    """Serve until a signal arrives; write the address to standard output as soon as requests are
    accepted.

    Args:
        app: see `create_app`.
        host, port: address to listen on; port 0 takes a free port.
        until_stdin_closes: end when standard input closes, which ties the server to its parent
            process.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as place:
        place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            place.bind((host, port))
        except OSError as error:
            raise AgentSystemError(
                f"cannot listen on {host}:{port}: {error}; choose another --port, or 0 for a free one"
            ) from error
        place.listen(2048)
        server = uvicorn.Server(
            uvicorn.Config(app, log_level="warning", timeout_keep_alive=75, timeout_graceful_shutdown=5)
        )
        if until_stdin_closes:
            threading.Thread(target=_end_with_stdin, args=(server,), daemon=True).start()
        url_host = f"[{host}]" if ":" in host else host
        sys.stdout.write(f"http://{url_host}:{place.getsockname()[1]}{PATH}\n")
        sys.stdout.flush()
        server.run(sockets=[place])


def _end_with_stdin(server: uvicorn.Server) -> None:
    while sys.stdin.buffer.read(4096):
        pass
    server.should_exit = True
    threading.Event().wait(EXIT_TIMEOUT_S)
    os._exit(1)  # a search does not return


def main(argv: Sequence[str] | None = None) -> None:
    """Parse the command line, index the corpus and serve it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--corpus",
        required=True,
        help="jsonl (or .jsonl.gz), one document per line: id and contents, or title and text",
    )
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000, help="0 takes a free one")
    parser.add_argument("--index", choices=("bm25", "dense"), default="bm25")
    parser.add_argument(
        "--model", default="intfloat/e5-base-v2", help="sentence encoder of the dense index: folder or hub id"
    )
    parser.add_argument(
        "--query-prefix", default="query: ", help="prefix that the encoder expects before a query"
    )
    parser.add_argument(
        "--document-prefix", default="passage: ", help="prefix that it expects before a document"
    )
    parser.add_argument("--max-batch", type=int, default=64, help="queries that are searched together")
    parser.add_argument("--cache", type=int, default=65_536, help="queries whose results are cached")
    parser.add_argument(
        "--timeout", type=float, default=RequestLimits.timeout_s, help="seconds of one request"
    )
    parser.add_argument("--max-query-chars", type=int, default=RequestLimits.max_query_chars)
    parser.add_argument("--until-stdin-closes", action="store_true", help="end when standard input closes")
    args = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    try:
        documents = load_corpus(args.corpus)
        logger.info("%d documents of %s: building the %s index", len(documents), args.corpus, args.index)
        finder = Finder(
            documents, build_index(documents, args), max_batch=args.max_batch, cache_size=args.cache
        )
        limits = RequestLimits(max_query_chars=args.max_query_chars, timeout_s=args.timeout)
        serve(create_app(finder, limits), args.host, args.port, until_stdin_closes=args.until_stdin_closes)
    except AgentSystemError as error:
        parser.exit(2, f"error: {error}\n")


if __name__ == "__main__":
    main()
