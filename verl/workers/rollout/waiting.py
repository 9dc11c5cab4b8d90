"""Replies that wait for a slot, grouped by prompt, and which slots hold the keys of which prompt."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from verl.protocol.generate import GenerateRequest, Generation


@dataclass
class Ticket:
    """One request in progress: its replies, None while unfinished, the grammar that they follow,
    and the number of unfinished ones.
    """

    request: GenerateRequest
    limit: int
    replies: list[Generation | None]
    grammar: Any = None
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
    """A prompt that replies wait for or slots hold.

    Attributes:
        key: see `Ticket.prompt_key`.
        adapter: under which it is computed.
        bucket: padded length.
        arrival: number of the first waiting reply in order of arrival.
        waiting: replies without a slot, those with the lowest priority number first, and of these
            the oldest.
        holders: slots with its keys, free or busy, oldest first.
        group: its key in `WaitingPrompts.to_compute`; None outside.
    """

    key: Hashable
    adapter: str | None
    bucket: int
    arrival: int = 0
    waiting: deque[PendingReply] = field(default_factory=deque)
    holders: dict[int, None] = field(default_factory=dict)
    group: tuple[int, int] | None = None

    @property
    def priority(self) -> float:
        """Priority number of its first waiting reply; infinite without one."""
        return self.waiting[0].ticket.priority if self.waiting else math.inf


class WaitingPrompts:
    """All prompts that replies wait for or slots hold.

    Attributes:
        replies: number of waiting replies.
        held: prompt by slot.
        to_compute: prompts of waiting replies that no slot holds, by (priority, bucket), in order
            of arrival; no group is empty.
    """

    def __init__(self, bucket_of: Callable[[int], int]) -> None:
        self.replies = 0
        self.held: dict[int, EnginePrompt] = {}
        self.to_compute: dict[tuple[int, int], dict[EnginePrompt, None]] = {}
        self._bucket_of = bucket_of
        self._by_key: dict[Hashable, EnginePrompt] = {}
        self._arrivals = count()

    def add(self, reply: PendingReply) -> None:
        """Queue a reply."""
        key = reply.ticket.prompt_key
        prompt = self._by_key.get(key)
        if prompt is None:
            prompt = self._by_key[key] = EnginePrompt(
                key, reply.ticket.request.adapter, self._bucket_of(len(reply.ticket.request.prompt_ids))
            )
        if not prompt.waiting:
            prompt.arrival = next(self._arrivals)
        before = prompt.waiting[-1].ticket.priority if prompt.waiting else reply.ticket.priority
        prompt.waiting.append(reply)
        # `sorted` is stable: replies of equal priority stay in order of arrival.
        if reply.ticket.priority < before:
            prompt.waiting = deque(sorted(prompt.waiting, key=lambda reply: reply.ticket.priority))
        self.replies += 1
        self._update(prompt)

    def withdraw(self, ticket: Ticket) -> list[PendingReply]:
        """Remove the ticket's replies from the queue and return them."""
        prompt = self._by_key.get(ticket.prompt_key)
        removed = [reply for reply in prompt.waiting if reply.ticket is ticket] if prompt is not None else []
        if prompt is not None and removed:
            prompt.waiting = deque(reply for reply in prompt.waiting if reply.ticket is not ticket)
            self.replies -= len(removed)
            self._update(prompt)
        return removed

    def assign(self, slot: int, prompt: EnginePrompt) -> PendingReply:
        """Assign the slot, which holds this prompt from now on, to the prompt's oldest waiting
        reply, and return that reply.
        """
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

    def _update(self, prompt: EnginePrompt) -> None:
        """Update `to_compute` in order of arrival, and drop a prompt without waiting replies and
        holders.
        """
        to = (
            (prompt.waiting[0].ticket.priority, prompt.bucket)
            if prompt.waiting and not prompt.holders
            else None
        )
        if to != prompt.group:
            if prompt.group is not None:
                del self.to_compute[prompt.group][prompt]
                if not self.to_compute[prompt.group]:
                    del self.to_compute[prompt.group]
            if to is not None:
                group = self.to_compute.setdefault(to, {})
                late = bool(group) and next(reversed(group)).arrival > prompt.arrival
                group[prompt] = None
                if late:  # the last slot that held it was reused, or its priority changed
                    self.to_compute[to] = dict(sorted(group.items(), key=lambda item: item[0].arrival))
            prompt.group = to
        if not prompt.waiting and not prompt.holders:
            del self._by_key[prompt.key]
