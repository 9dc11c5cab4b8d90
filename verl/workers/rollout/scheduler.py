"""Who gets a slot, and which prompts are computed together.

Waiting replies are served in order of arrival. A prompt is computed once while its keys stay in some slot: further replies
for it copy that slot. Prompts are computed in batches whose shape is a function of the prompt's own length (`prompt_bucket`
times `rows_of`), so that the numbers of a prompt do not depend on who came with it; unused rows are padding. A batch that is
not full waits a few steps for company, unless many slots stand empty.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field

from verl.protocol.generate import GenerateRequest, Generation

PATIENCE = 16  # decode steps that a prompt waits for others of its bucket
_FINE = 32


def prompt_bucket(length: int) -> int:
    """Padded length of a prompt: 32, 64, 96, 128, then steps of a quarter to a half of the power of two below."""
    if length <= 4 * _FINE:
        return -(-length // _FINE) * _FINE
    step = 1 << ((length - 1).bit_length() - 2)
    return -(-length // step) * step


def rows_of(bucket: int, token_budget: int) -> int:
    """Rows of a prefill batch of this bucket: as many as fit into the token budget, at least one."""
    return max(1, token_budget // bucket)


@dataclass
class Ticket:
    """One request on its way: the replies that are done, or why there will be none."""

    request: GenerateRequest
    limit: int
    replies: list[Generation | None]
    error: str | None = None
    open: int = field(init=False)

    def __post_init__(self) -> None:
        self.open = len(self.replies)

    @property
    def prompt_key(self) -> Hashable:
        return (self.request.adapter, self.request.prompt_ids)


@dataclass(frozen=True)
class Reply:
    """Reply number `index` of a ticket."""

    ticket: Ticket
    index: int


@dataclass(frozen=True)
class Prefill:
    """Compute these replies' prompts, all of one bucket, into the slots beside them."""

    bucket: int
    rows: int
    batch: list[tuple[int, Reply]]


@dataclass(frozen=True)
class Copies:
    """Copy the prompt's keys from the first slot to the second (which may be the same) for each reply."""

    batch: list[tuple[int, int, Reply]]


class Scheduler:
    """Waiting queue, free slots, and which slot holds the keys of which prompt. Knows no tensors."""

    def __init__(self, slots: int, token_budget: int) -> None:
        self._token_budget = token_budget
        self._waiting: deque[Reply] = deque()
        self._free: deque[int] = deque(range(slots))
        self._slots = slots
        self._holder: dict[Hashable, int] = {}
        self._held: dict[int, Hashable] = {}
        self._waited = 0

    @property
    def waiting(self) -> int:
        """Replies without a slot."""
        return len(self._waiting)

    def add(self, replies: Iterable[Reply]) -> None:
        """Queue replies."""
        self._waiting.extend(replies)

    def withdraw(self, ticket: Ticket) -> list[Reply]:
        """Take the ticket's waiting replies out of the queue."""
        gone = [reply for reply in self._waiting if reply.ticket is ticket]
        if gone:
            self._waiting = deque(reply for reply in self._waiting if reply.ticket is not ticket)
        return gone

    def free(self, slot: int) -> None:
        """Give a slot back; it keeps its prompt's keys until it is reused, which happens oldest first."""
        self._free.append(slot)

    def forget(self, slots: Iterable[int] | None = None) -> None:
        """Treat these slots (all, by default) as holding no prompt: the weights changed, or the keys are bad."""
        for slot in list(self._held) if slots is None else slots:
            self._release_prompt(slot)

    def admit(self) -> Prefill | Copies | None:
        """Choose what to admit now; call again until None."""
        if not self._waiting or not self._free:
            return None
        return self._take_copies() or self._take_prefill()

    def tick(self) -> None:
        """Note that a decode step passed."""
        self._waited = self._waited + 1 if self._waiting and self._free else 0

    def _take_copies(self) -> Copies | None:
        if not self._holder:
            return None
        batch: list[tuple[int, int, Reply]] = []
        left: deque[Reply] = deque()
        sources: set[int] = set()
        for reply in self._waiting:
            source = self._holder.get(reply.ticket.prompt_key)
            slot = None if source is None else self._slot_for_copy(source, sources)
            if source is None or slot is None:
                left.append(reply)
                continue
            sources.add(source)
            batch.append((source, slot, reply))
        self._waiting = left
        return Copies(batch) if batch else None

    def _slot_for_copy(self, source: int, sources: set[int]) -> int | None:
        """Oldest free slot that no copy of this admission reads; else the source itself, when it is free."""
        for slot in self._free:
            if slot != source and slot not in sources:
                self._free.remove(slot)
                self._release_prompt(slot)
                return slot
        if source in self._free:
            self._free.remove(source)
            return source
        return None

    def _take_prefill(self) -> Prefill | None:
        bucket = prompt_bucket(len(self._waiting[0].ticket.request.prompt_ids))
        rows = rows_of(bucket, self._token_budget)
        chosen: dict[Hashable, Reply] = {}
        for reply in self._waiting:
            if len(chosen) == min(rows, len(self._free)):
                break
            if prompt_bucket(len(reply.ticket.request.prompt_ids)) == bucket:
                chosen.setdefault(reply.ticket.prompt_key, reply)
        if len(chosen) < rows and self._waited < PATIENCE and 2 * len(self._free) < self._slots:
            return None
        self._waited = 0
        taken = {id(reply) for reply in chosen.values()}
        self._waiting = deque(reply for reply in self._waiting if id(reply) not in taken)
        batch = []
        for prompt_key, reply in chosen.items():
            slot = self._free.popleft()
            self._release_prompt(slot)
            self._holder[prompt_key], self._held[slot] = slot, prompt_key
            batch.append((slot, reply))
        return Prefill(bucket, rows, batch)

    def _release_prompt(self, slot: int) -> None:
        prompt_key = self._held.pop(slot, None)
        if prompt_key is not None:
            del self._holder[prompt_key]
