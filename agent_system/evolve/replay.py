"""Replies of engines that are kept, so that a request that was made before costs nothing.

A reply depends on weights, prompt, sampling and seed only, so a team that differs from another one
in a few steps makes most of its requests a second time. Kept replies are written to a file before
the line of the ledger that counts them, so a search that goes on after a kill counts as before. Those
of the batch that is played are written to another file as they arrive: of a batch that was killed
only the replies that were still on their way are requested, and paid for, again.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
from collections.abc import Awaitable
from pathlib import Path
from typing import Any, BinaryIO

from agent_system.errors import AgentSystemError
from agent_system.rollout.remote import RemoteGeneration
from verl.protocol.generate import GenerateRequest, Generation, RolloutClient

MOST_REPLIES = 200_000
# Ends the name of the file of replies that no event counts yet.
ARRIVED_SUFFIX = ".new.jsonl"


class ReplayMemory:
    """Replies by request, of all engines of a search; the oldest are forgotten.

    Attributes:
        tokens: tokens that engines and servers have generated since `commit`.
        replies: replies that they have generated since `commit`.
    """

    def __init__(self, path: Path | None = None, most: int = MOST_REPLIES) -> None:
        """Keep at most `most` replies, and write them to `path`, if given."""
        self.tokens = 0
        self.replies = 0
        self._path = path
        self._arrived_path = path and path.with_name(path.stem + ARRIVED_SUFFIX)
        self._arrived_file: BinaryIO | None = None
        self._most = most
        self._size = 0
        # arrived before a kill, and not counted yet
        self._early: dict[str, list[Generation]] = {}
        self._kept: dict[str, list[Generation]] = {}
        self._new: dict[str, list[Generation]] = {}
        self._open: dict[str, asyncio.Future[list[Generation]]] = {}
        self._versions: set[int] = set()

    def load(self, size: int) -> None:
        """Read the first `size` bytes of the file in place of what is in memory, and cut it there.

        Raises AgentSystemError, before the file is changed, if it has less, or other content.
        """
        self._kept.clear()
        self._versions.clear()
        if self._path is None:
            return
        content = self._path.read_bytes() if self._path.exists() else b""
        fix = "restore the file, or set trainer.experiment_name to another one"
        if len(content) < size:
            raise AgentSystemError(
                f"{self._path}: has {len(content)} of the {size} bytes of replies that the ledger beside it "
                f"counts, so the search cannot go on; {fix}"
            )
        for number, line in enumerate(content[:size].splitlines(), 1):
            try:
                key, replies = _read_line(line)
            except (TypeError, ValueError, KeyError) as error:
                raise AgentSystemError(f"{self._path}: line {number} has no replies; {fix}") from error
            self._keep(key, replies)
            self._versions.update(reply.version for reply in replies)
        with open(self._path, "ab") as file:
            file.truncate(size)
        self._size = size
        self._load_arrived()

    def _load_arrived(self) -> None:
        """Read the replies that arrived before a kill, up to the first line that was not written
        whole.
        """
        assert self._arrived_path is not None, "the replies have a file"
        self._close_arrived()
        self._early.clear()
        content = self._arrived_path.read_bytes() if self._arrived_path.exists() else b""
        size = 0
        for line in content.splitlines(keepends=True):
            try:
                key, replies = _read_line(line)
            except (TypeError, ValueError, KeyError):
                break
            if not line.endswith(b"\n"):
                break
            size += len(line)
            # a batch that was counted before the kill has its own among the kept ones
            if key not in self._kept:
                self._early[key] = replies
        if self._early:
            self._arrived_file = open(self._arrived_path, "ab", buffering=0)  # noqa: SIM115 - see `_arrived`
            self._arrived_file.truncate(size)

    async def reply(self, key: str, request: Awaitable[list[Generation]]) -> list[Generation]:
        """Return the kept replies of a request, or those that an engine gives; one that is made
        twice at the same time goes to the engine once.

        Raises AgentSystemError for a reply of other weights than those before.
        """
        if key in self._early:
            self._count(key, self._early.pop(key))
        kept_replies = self._kept.get(key) or self._new.get(key)
        if kept_replies is not None:
            _close(request)
            # the other calls of a vote begin before this one ends, as they do with an engine
            await asyncio.sleep(0)
            return kept_replies
        future = self._open.get(key)
        if future is None:
            future = self._open[key] = asyncio.ensure_future(request)
            future.add_done_callback(lambda ended: self._arrived(key, ended))
        else:
            _close(request)
        replies = await asyncio.shield(future)
        if len(self._versions) > 1:
            raise AgentSystemError(
                f"the weights changed during the search (versions {sorted(self._versions)}): scores of "
                "different weights cannot be compared"
            )
        return replies

    def commit(self) -> int:
        """Keep the new replies, in an order that does not depend on their arrival, and return the
        size of the file.
        """
        lines = []
        for key, replies in sorted(self._new.items()):
            lines.append(_line(key, replies))
            self._keep(key, replies)
        self._new.clear()
        self.tokens = 0
        self.replies = 0
        if self._path is not None and lines:
            self._early.clear()
            # the next reply begins the file anew, when the event that counts these has been written
            self._close_arrived()
            content = b"".join(lines)
            with open(self._path, "ab") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            self._size += len(content)
        return self._size

    def _arrived(self, key: str, future: asyncio.Future[list[Generation]]) -> None:
        del self._open[key]
        if future.cancelled() or future.exception() is not None:
            return
        replies = future.result()
        self._count(key, replies)
        if self._arrived_path is not None:
            if self._arrived_file is None:
                self._arrived_file = open(self._arrived_path, "wb", buffering=0)  # noqa: SIM115 - of a batch
            self._arrived_file.write(_line(key, replies))

    def _count(self, key: str, replies: list[Generation]) -> None:
        self._new[key] = replies
        self.replies += len(replies)
        self.tokens += sum(map(_tokens, replies))
        self._versions.update(reply.version for reply in replies)

    def _close_arrived(self) -> None:
        if self._arrived_file is not None:
            self._arrived_file.close()
            self._arrived_file = None

    def _keep(self, key: str, replies: list[Generation]) -> None:
        self._kept[key] = replies
        if len(self._kept) > self._most:
            del self._kept[next(iter(self._kept))]


class ReplayClient:
    """A `RolloutClient` that answers requests that were made before from memory."""

    def __init__(self, client: RolloutClient, name: str, memory: ReplayMemory) -> None:
        """Ask `client`, an engine of the weights `name`."""
        self._client = client
        self._name = name
        self._memory = memory

    async def generate(self, request: GenerateRequest) -> list[Generation]:
        """Return the replies. Raise as the engine does."""
        what = (self._name, request.adapter, request.prompt_ids, request.sampling, request.seed, request.n)
        key = hashlib.blake2b(repr(what).encode(), digest_size=16).hexdigest()
        return await self._memory.reply(key, self._client.generate(request))


def _close(request: Awaitable[Any]) -> None:
    close = getattr(request, "close", None)
    if close is not None:
        close()  # a coroutine that is never awaited warns


def _tokens(reply: Generation) -> int:
    """Return the tokens of a reply; a server's count for one of a server."""
    return reply.reply_tokens if isinstance(reply, RemoteGeneration) else len(reply.token_ids)


def _line(key: str, replies: list[Generation]) -> bytes:
    return json.dumps([key, [_fields(reply) for reply in replies]], separators=(",", ":")).encode() + b"\n"


def _read_line(line: bytes) -> tuple[str, list[Generation]]:
    """Return the key and the replies of a line. Raise TypeError, ValueError or KeyError for another
    line.
    """
    try:
        key, fields = json.loads(line)
    except RecursionError as error:
        raise ValueError("nested too deep") from error
    if not isinstance(key, str):
        raise TypeError("the key is no text")
    return key, [_reply(reply) for reply in fields]


def _fields(reply: Generation) -> Any:
    if isinstance(reply, RemoteGeneration):
        return {
            "text": reply.text,
            "stop": reply.stop_reason,
            "prompt_tokens": reply.prompt_tokens,
            "reply_tokens": reply.reply_tokens,
        }
    return [list(reply.token_ids), list(reply.log_probs), reply.stop_reason, reply.version]


def _reply(fields: Any) -> Generation:
    if isinstance(fields, dict):
        return RemoteGeneration(
            (),
            (),
            fields["stop"],
            text=str(fields["text"]),
            prompt_tokens=int(fields["prompt_tokens"]),
            reply_tokens=int(fields["reply_tokens"]),
        )
    token_ids, log_probs, stop_reason, version = fields
    return Generation(tuple(token_ids), tuple(log_probs), stop_reason, version=version)
