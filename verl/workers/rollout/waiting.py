"""Replies that wait for a slot, grouped by prompt, and which slots hold the keys of which whole
prompt.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Hashable
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from verl.protocol.generate import GenerateRequest, Generation

# Prompts whose first replies arrived within so many are reordered to spare computation.
ARRIVALS = 256
Place = tuple[float, int, int, int]


@dataclass
class Ticket:
    """One request in progress: its replies, None while unfinished, the grammar that they follow,
    the slots of unfinished ones by reply number, and the number of unfinished ones.
    """

    request: GenerateRequest
    limit: int
    replies: list[Generation | None]
    grammar: Any = None
    slots: dict[int, int] = field(default_factory=dict)
    open: int = field(init=False)

    def __post_init__(self) -> None:
        self.open = len(self.replies)

    @property
    def priority(self) -> int:
        """As `GenerateRequest.priority`."""
        return self.request.priority

    @property
    def prompt_key(self) -> Hashable:
        """Key that is equal for equal prompts under the same adapter."""
        return (self.request.adapter, self.request.prompt_ids)


@dataclass(frozen=True)
class PendingReply:
    """Reply number `index` of a ticket."""

    ticket: Ticket
    index: int


@dataclass(eq=False)
class EnginePrompt:
    """A prompt that replies wait for, that is being computed, or that slots hold.

    Attributes:
        key: see `Ticket.prompt_key`.
        adapter: under which it is computed.
        tokens: of the prompt.
        arrival: number of the first waiting reply in order of arrival.
        waiting: heap of replies without a slot: (priority, number, reply).
        holders: slots with its keys and the logits after it, free or busy, oldest first.
        free_holders: those of them that are free.
        computing: whether a slot is being filled with it.
        entry: its last place in the queues of `WaitingPrompts`.
    """

    key: Hashable
    adapter: str | None
    tokens: tuple[int, ...]
    arrival: int = 0
    waiting: list[tuple[int, int, PendingReply]] = field(default_factory=list)
    holders: dict[int, None] = field(default_factory=dict)
    free_holders: dict[int, None] = field(default_factory=dict)
    computing: bool = False
    entry: Place | None = None

    @property
    def priority(self) -> float:
        """Priority number of its first waiting reply; infinite without one."""
        return self.waiting[0][0] if self.waiting else math.inf

    @property
    def place(self) -> Place:
        """Sorts prompts: by priority, then of those that arrived at about the same time the ones that a
        free slot holds and others that need not be computed, then by arrival.
        """
        level = 0 if self.free_holders else 1 if self.holders or self.computing else 2
        # In blocks of arrivals, so that a prompt that is always asked for keeps no other from a slot.
        return (self.priority, self.arrival // ARRIVALS, level, self.arrival)


class WaitingPrompts:
    """All prompts that replies wait for, that are being computed, or that slots hold; at first all
    of `slots` slots are free.

    Attributes:
        replies: number of waiting replies.
        by_slot: prompt by slot.
    """

    def __init__(self, slots: int) -> None:
        self.replies = 0
        self._free = set(range(slots))
        self.by_slot: dict[int, EnginePrompt] = {}
        self._by_key: dict[Hashable, EnginePrompt] = {}
        # A prompt whose place changes is pushed again; entries of former places are dropped when
        # they come first.
        self._queue: list[tuple[Place, int, EnginePrompt]] = []
        self._numbers = count()

    def add(self, reply: PendingReply) -> None:
        """Queue a reply."""
        key = reply.ticket.prompt_key
        prompt = self._by_key.get(key)
        if prompt is None:
            request = reply.ticket.request
            prompt = self._by_key[key] = EnginePrompt(key, request.adapter, request.prompt_ids)
        number = next(self._numbers)
        if not prompt.waiting:
            prompt.arrival = number
        heapq.heappush(prompt.waiting, (reply.ticket.priority, number, reply))
        self.replies += 1
        self._update(prompt)

    def first(self) -> EnginePrompt | None:
        """Return the prompt whose replies are next."""
        while self._queue and self._queue[0][0] != self._queue[0][2].place:
            heapq.heappop(self._queue)
        return self._queue[0][2] if self._queue else None

    def take(self, prompt: EnginePrompt) -> PendingReply:
        """Remove the prompt's first waiting reply from the queue and return it."""
        _, _, reply = heapq.heappop(prompt.waiting)
        self.replies -= 1
        if prompt.waiting:
            prompt.arrival = prompt.waiting[0][1]
        self._update(prompt)
        return reply

    def withdraw(self, ticket: Ticket) -> list[PendingReply]:
        """Remove the ticket's replies from the queue and return them."""
        prompt = self._by_key.get(ticket.prompt_key)
        if prompt is None:
            return []
        removed = sorted(entry for entry in prompt.waiting if entry[2].ticket is ticket)
        if removed:
            prompt.waiting = [entry for entry in prompt.waiting if entry[2].ticket is not ticket]
            heapq.heapify(prompt.waiting)
            self.replies -= len(removed)
            self._update(prompt)
        return [reply for _, _, reply in removed]

    def set_computing(self, prompt: EnginePrompt, computing: bool) -> None:
        """Record whether a slot is being filled with the prompt."""
        prompt.computing = computing
        self._update(prompt)

    def hold(self, slot: int, prompt: EnginePrompt) -> None:
        """Record that a slot holds this prompt and no other."""
        if self.by_slot.get(slot) is not prompt:
            self.release(slot)
            self.by_slot[slot] = prompt
            prompt.holders[slot] = None
            if slot in self._free:
                prompt.free_holders[slot] = None
            self._update(prompt)

    def release(self, slot: int) -> None:
        """Record that the slot no longer holds a prompt."""
        prompt = self.by_slot.pop(slot, None)
        if prompt is not None:
            del prompt.holders[slot]
            prompt.free_holders.pop(slot, None)
            self._update(prompt)

    def set_free(self, slot: int, is_free: bool) -> None:
        """Record whether a slot is free."""
        prompt = self.by_slot.get(slot)
        if is_free:
            self._free.add(slot)
        else:
            self._free.discard(slot)
        if prompt is not None:
            if is_free:
                prompt.free_holders[slot] = None
            else:
                prompt.free_holders.pop(slot, None)
            self._update(prompt)

    def _update(self, prompt: EnginePrompt) -> None:
        """Queue a prompt at its present place, and drop one that nothing needs."""
        if prompt.waiting and prompt.place != prompt.entry:
            prompt.entry = prompt.place
            heapq.heappush(self._queue, (prompt.entry, next(self._numbers), prompt))
        if not prompt.waiting and not prompt.holders and not prompt.computing:
            self._by_key.pop(prompt.key, None)
