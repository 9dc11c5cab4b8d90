"""The ledger of a search: one line of JSON for everything that it paid for or decided.

The search is a function of its inputs and of the results in the ledger. To go on after a kill it
runs from its beginning and takes the results from the lines instead of playing again, so there is
no other state to save. Lines have no times and no random states.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from agent_system.errors import AgentSystemError
from agent_system.evolve.replay import ReplayMemory

logger = logging.getLogger(__name__)
Work = Callable[[], Awaitable[Mapping[str, Any]]]
# What a search has after its last generation.
LAST_EVENTS = ("confirm", "held_out", "chosen")


class LedgerError(AgentSystemError):
    """A ledger of another search, that another process writes, or without its replies."""


class SearchLedger:
    """The events of a search, in their order.

    Attributes:
        folder: has the ledger and the kept replies.
        header: what the search depends on.
        resumed: number of events that it had when it was opened.
    """

    def __init__(self, folder: Path, header: Mapping[str, Any], memory: ReplayMemory) -> None:
        """Open the ledger of a folder, or begin one.

        Raises LedgerError if its header is another one, if another process has it open, or if the
        file of kept replies has less than it counts.
        """
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.header = _plain(header)
        self._memory = memory
        self._file = open(folder / "ledger.jsonl", "ab+")  # noqa: SIM115 - open as long as the search
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._file.close()
            raise LedgerError(f"{folder}: another process writes this search") from error
        try:
            lines = self._whole_lines()
            if lines:
                _check_header(folder, lines[0][1], self.header)
            self._load_replies(lines[-1][1]["reply_bytes"] if lines else 0)
        except LedgerError:
            self._file.close()
            raise
        self._past = deque(lines[1:])
        self._reply_bytes = lines[0][1]["reply_bytes"] if lines else 0
        self.resumed = len(self._past)
        if not lines:
            self._write({"event": "header", **self.header, "reply_bytes": 0})

    async def event(self, request: Mapping[str, Any], work: Work) -> dict[str, Any]:
        """Return the next event: its line, if the ledger has it, else that of `work`, written now.

        Where the ledger has the end of a search and this one goes on, with more generations or a
        larger budget, the lines of that end are removed, since the finalists may be others now.

        Args:
            request: what is request_fields for; part of the line.
            work: returns the rest of the line.

        Raises LedgerError if the line is of another request, also where a search with fewer
        generations or a smaller budget ends.
        """
        request_fields = _plain(request)
        if self._past:
            place, line = self._past[0]
            if {name: line.get(name) for name in request_fields} == request_fields:
                self._past.popleft()
                self._reply_bytes = line["reply_bytes"]
                return line
            if line["event"] not in LAST_EVENTS or request_fields["event"] in LAST_EVENTS:
                raise LedgerError(_other_event(self.folder / "ledger.jsonl", line, request_fields))
            self._cut(place)
        line = {**request_fields, **_plain(await work()), "reply_bytes": self._memory.commit()}
        self._write(line)
        return line

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _load_replies(self, size: int) -> None:
        try:
            self._memory.load(size)
        except AgentSystemError as error:
            raise LedgerError(str(error)) from error

    def _cut(self, place: int) -> None:
        """Remove the lines from a place of the file on, with their replies."""
        logger.warning(
            "%s: the search had ended and goes on; %d lines of its finalists are removed",
            self.folder / "ledger.jsonl", len(self._past),
        )  # fmt: skip
        self._past.clear()
        self._file.truncate(place)
        os.fsync(self._file.fileno())
        self._load_replies(self._reply_bytes)

    def _whole_lines(self) -> list[tuple[int, dict[str, Any]]]:
        """Return the lines with their places in the file, without a last one that was not written
        whole, which is cut off.
        """
        self._file.seek(0)
        content = self._file.read()
        lines = []
        size = 0
        for raw in content.splitlines(keepends=True):
            if not raw.endswith(b"\n"):
                break
            try:
                lines.append((size, json.loads(raw)))
            except ValueError as error:
                if size + len(raw) == len(content):
                    break
                raise LedgerError(
                    f"{self.folder / 'ledger.jsonl'}: line {len(lines) + 1} is no JSON"
                ) from error
            size += len(raw)
        self._file.truncate(size)
        return lines

    def _write(self, line: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(line, separators=(",", ":")).encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())


def _plain(value: Mapping[str, Any]) -> dict[str, Any]:
    """Return a mapping as JSON reads it back."""
    plain: dict[str, Any] = json.loads(json.dumps(value, allow_nan=False))
    return plain


def _other_event(path: Path, line: Mapping[str, Any], request: Mapping[str, Any]) -> str:
    text = f"{path}: has {json.dumps(line)[:200]} where the search has {json.dumps(request)[:200]}; "
    if request["event"] in LAST_EVENTS and line["event"] not in LAST_EVENTS:
        return text + (
            "it has played more than evolve.generations and evolve.budget_tokens allow, set them to what "
            "they were or more"
        )
    return text + "it is of another version, use another folder"


def _check_header(folder: Path, line: Mapping[str, Any], header: Mapping[str, Any]) -> None:
    """Raise LedgerError if the first line of a ledger is of another header."""
    before = {name: value for name, value in line.items() if name not in ("event", "reply_bytes")}
    if before != header:
        raise LedgerError(_difference(folder, before, header))


def _difference(folder: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    theirs = _flat(before)
    ours = _flat(now)
    name = next(n for n in dict.fromkeys([*theirs, *ours]) if theirs.get(n) != ours.get(n))
    return (
        f"{folder}: the search there has {name}={theirs.get(name)!r}, this one {ours.get(name)!r}; go on "
        "with the same inputs, or set trainer.experiment_name to another one"
    )


def _flat(value: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, item in value.items():
        if isinstance(item, Mapping):
            flat |= _flat(item, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = item
    return flat
