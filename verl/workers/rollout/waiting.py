"""Replies that wait for a slot, grouped by prompt, and which slots hold the keys of which prompt."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from verl.protocol.generate import GenerateRequest, Generation


@dataclass
class Ticket:
    """One request in progress: its replies, None while unfinished, the grammar that they follow, and the number of unfinished ones."""

    request: GenerateRequest
    limit: int
    replies: list[Generation | None]
    grammar: Any = None
    open: int = field(init=False)

    def __post_init__(self) -> None:
        self.open = len(self.replies)

    @property
    def prompt_key(self) -> Hashable:
        """Key that is equal for equal prompts under the same adapter."""
        return (self.request.adapter, self.request.prompt_ids)


@dataclass(frozen=True)
class Reply:
    """Reply number `index` of a ticket."""

    ticket: Ticket
    index: int


@dataclass(eq=False)
class Prompt:
    """A prompt that replies wait for or slots hold.

    Attributes:
        key: see `Ticket.prompt_key`.
        adapter: under which it is computed.
        bucket: padded length.
        arrival: number of the first waiting reply in order of arrival.
        waiting: replies without a slot, oldest first.
        holders: slots with its keys, free or busy, oldest first.
    """

    key: Hashable
    adapter: str | None
    bucket: int
    arrival: int = 0
    waiting: deque[Reply] = field(default_factory=deque)
    holders: dict[int, None] = field(default_factory=dict)


class WaitingPrompts:
    """All prompts that replies wait for or slots hold.

    Attributes:
        replies: number of waiting replies.
        held: prompt by slot.
        to_compute: prompts of waiting replies that no slot holds, by bucket, in order of arrival; no bucket is empty.
    """

    def __init__(self, bucket_of: Callable[[int], int]) -> None:
        self.replies = 0
        self.held: dict[int, Prompt] = {}
        self.to_compute: dict[int, dict[Prompt, None]] = {}
        self._bucket_of = bucket_of
        self._by_key: dict[Hashable, Prompt] = {}
        self._arrivals = count()

    def add(self, reply: Reply) -> None:
        """Queue a reply."""
        key = reply.ticket.prompt_key
        prompt = self._by_key.get(key)
        if prompt is None:
            prompt = self._by_key[key] = Prompt(key, reply.ticket.request.adapter, self._bucket_of(len(reply.ticket.request.prompt_ids)))
        if not prompt.waiting:
            prompt.arrival = next(self._arrivals)
        prompt.waiting.append(reply)
        self.replies += 1
        self._update(prompt)

    def withdraw(self, ticket: Ticket) -> list[Reply]:
        """Remove the ticket's replies from the queue and return them."""
        prompt = self._by_key.get(ticket.prompt_key)
        removed = [reply for reply in prompt.waiting if reply.ticket is ticket] if prompt is not None else []
        if prompt is not None and removed:
            prompt.waiting = deque(reply for reply in prompt.waiting if reply.ticket is not ticket)
            self.replies -= len(removed)
            self._update(prompt)
        return removed

    def assign(self, slot: int, prompt: Prompt) -> Reply:
        """Assign the slot, which holds this prompt from now on, to the prompt's oldest waiting reply, and return that reply."""
        if slot not in prompt.holders:
            self.release(slot)
            self.held[slot], prompt.holders[slot] = prompt, None
        reply = prompt.waiting.popleft()
        self.replies -= 1
        self._update(prompt)
        return reply

    def release(self, slot: int) -> None:
        """Record that the slot no longer holds a prompt."""
        prompt = self.held.pop(slot, None)
        if prompt is not None:
            del prompt.holders[slot]
            self._update(prompt)

    def _update(self, prompt: Prompt) -> None:
        """Update `to_compute` in order of arrival, and drop a prompt without waiting replies and holders."""
        group = self.to_compute.setdefault(prompt.bucket, {})
        if not prompt.waiting or prompt.holders:
            group.pop(prompt, None)
        elif prompt not in group:
            late = bool(group) and next(reversed(group)).arrival > prompt.arrival
            group[prompt] = None
            if late:  # the last slot that held it was reused
                self.to_compute[prompt.bucket] = dict(sorted(group.items(), key=lambda item: item[0].arrival))
        if not self.to_compute[prompt.bucket]:
            del self.to_compute[prompt.bucket]
        if not prompt.waiting and not prompt.holders:
            del self._by_key[prompt.key]
