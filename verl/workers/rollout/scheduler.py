"""Assignment of slots to replies, and of chunks of their prompts to passes of the model.

Waiting replies are served in order of arrival; those with a lower priority number before all
others, but no running reply is stopped for them. A reply gets its slot at once where one is free:
it starts from a slot that holds its whole prompt, waits for the slot that is being filled with it,
or its own slot is filled, from the longest beginning that any slot holds. So a prompt is computed
once while its keys are in some slot, and common beginnings of prompts as well. The last slot with a
prompt that replies wait for is assigned to others only before their turn, so a request for many
replies computes its prompt once, however few slots there are.

What free slots hold is lost in the order of its last use. A decode step runs over the slots up to
the last one in use, so replies get low slots; what such a slot holds moves to the one whose content
is lost.

Slots are filled chunk by chunk (`verl.workers.rollout.chunks`), in passes between decode steps. In
each, the text that has waited longest is served first and then those with the fewest tokens left.
An incomplete pass waits a few steps for further chunks, unless half of the slots are free.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice

from verl.workers.rollout.base import EngineStats
from verl.workers.rollout.chunks import CHUNK, TextChunk, next_chunk
from verl.workers.rollout.free_slots import FreeSlots
from verl.workers.rollout.prefixes import PrefixIndex
from verl.workers.rollout.waiting import EnginePrompt, PendingReply, Ticket, WaitingPrompts

MAX_WAIT = 16  # decode steps that chunks wait for others of their width
WINDOW = 32  # texts, those that have waited longest, among which a pass chooses
# Texts being computed per pass before the next decode step: one pass where a long prompt comes
# beside others, more where many begin together and few would be decoded meanwhile.
TEXTS_PER_PASS = 8


@dataclass(frozen=True)
class SlotMove:
    """A whole prompt or the beginning of a text, `length` tokens, that moves to another free slot."""

    source: int
    target: int
    length: int


@dataclass(frozen=True)
class Copy:
    """Positions from `start` to before `end` to copy from one slot to another."""

    source: int
    target: int
    start: int
    end: int


@dataclass(frozen=True)
class Admission:
    """A reply and its slot.

    Attributes:
        slot: of the reply.
        reply: the reply.
        source: slot that holds its prompt, from which it starts at once, the same where it is its
            own; None: it starts when its prompt is computed.
        move: to be made first.
        copies: to be made next, of the beginning of its prompt.
    """

    slot: int
    reply: PendingReply
    source: int | None = None
    move: SlotMove | None = None
    copies: Sequence[Copy] = ()


@dataclass(frozen=True)
class Pass:
    """Chunks of one width to compute in order, after the copies."""

    copies: list[Copy]
    chunks: list[TextChunk]


@dataclass(eq=False)
class Fill:
    """A slot that is being filled with a text.

    Attributes:
        slot: the slot.
        text: its tokens.
        adapter: under which it is computed.
        reply: that starts, or goes on, when the slot is filled; None if it has ended.
        prompt: of which the text consists; None for a reply that goes on after new weights.
        followers: replies that start from the same text, with their slots.
        start: position of the first token that is not computed.
        keys: of the whole chunks of the text.
        is_finite: whether all keys so far are numbers; others are found by nobody.
    """

    slot: int
    text: Sequence[int]
    adapter: str | None
    reply: PendingReply | None
    prompt: EnginePrompt | None
    keys: list[Hashable] = field(default_factory=list)
    followers: dict[int, PendingReply] = field(default_factory=dict)
    start: int = 0
    is_finite: bool = True

    @property
    def left(self) -> int:
        """Number of tokens that are not computed."""
        return len(self.text) - self.start


class Scheduler:
    """Waiting replies, free slots and slots that are being filled; handles no tensors.

    Args:
        slots: number of slots.
        token_budget: tokens of one pass over chunks; None: a text is computed whole and alone.
        caching: beginnings of texts are kept and used again; without, only whole prompts.
        stats: counts the tokens of prompts.
        row_block: slots by which the rows of a decode step grow.
    """

    def __init__(
        self,
        slots: int,
        token_budget: int | None,
        caching: bool = True,
        stats: EngineStats | None = None,
        row_block: int = 8,
    ) -> None:
        self._token_budget = token_budget
        self._stats = stats or EngineStats()
        self._caching = caching and token_budget is not None
        self._slots = slots
        self._free = FreeSlots(slots, row_block)
        self._prompts = WaitingPrompts(slots)
        self._index = PrefixIndex()
        self._fills: dict[int, Fill] = {}
        self._fill_of_prompt: dict[EnginePrompt, Fill] = {}
        self._fill_of_follower: dict[int, Fill] = {}
        # by width, the steps for which chunks have been waiting
        self._waited: dict[int, int] = {}

    @property
    def waiting(self) -> int:
        """Number of replies without a slot."""
        return self._prompts.replies

    @property
    def unstarted(self) -> int:
        """Number of replies with a slot whose text is being computed."""
        replies = sum(fill.reply is not None for fill in self._fills.values())
        return replies + len(self._fill_of_follower)

    def is_filling(self, slot: int) -> bool:
        """Whether a slot is being filled."""
        return slot in self._fills

    def add(self, replies: Iterable[PendingReply]) -> None:
        """Queue replies."""
        for reply in replies:
            self._prompts.add(reply)

    def withdraw(self, ticket: Ticket) -> list[PendingReply]:
        """Remove the ticket's waiting replies from the queue and return them."""
        return self._prompts.withdraw(ticket)

    def free(self, slot: int, text: Sequence[int] = (), adapter: str | None = None) -> None:
        """Record that the reply of a slot has ended. What the slot holds stays until it is reused;
        a slot that others wait for is filled first.

        Args:
            slot: of the reply.
            text: whose keys the slot holds, as they would be computed as a prompt: the prompt of
                the reply and its own tokens. Without, those of the prompt alone.
            adapter: of the reply.
        """
        if self._caching and text:
            first = len(self._index.of_slot(slot))
            self._index.append(slot, adapter, self._index.keys(text, adapter)[first:])
        fill = self._fills.get(slot)
        if fill is not None:
            fill.reply = None
        else:
            self._set_free(slot)
            fill = self._fill_of_follower.pop(slot, None)
            if fill is not None:
                del fill.followers[slot]
        if fill is not None and fill.reply is None and not fill.followers:
            self._end_fill(fill)
            self._set_free(fill.slot)

    def _set_free(self, slot: int) -> None:
        self._free.add(slot)
        self._prompts.set_free(slot, True)

    def _assign(self, slot: int) -> int:
        self._free.remove(slot)
        self._prompts.set_free(slot, False)
        return slot

    def forget(self, slots: Iterable[int] | None = None) -> None:
        """Record that these slots hold nothing, because their keys are invalid; None: that the
        model's weights have changed. Texts being computed then start again.
        """
        if slots is None:
            self._index.forget(None)
            self._restart(list(self._fills.values()))
            slots = list(self._prompts.by_slot)
        for slot in slots:
            self._clear(slot)
            if slot in self._fills:
                self._restart([self._fills[slot]])

    def forget_adapter(self, adapter: str) -> None:
        """As `forget`, for what was computed under this adapter."""
        self._index.forget(adapter)
        self._restart([fill for fill in self._fills.values() if fill.adapter == adapter])
        for slot in [slot for slot, prompt in self._prompts.by_slot.items() if prompt.adapter == adapter]:
            self._prompts.release(slot)

    def _restart(self, fills: Iterable[Fill]) -> None:
        for fill in fills:
            fill.start = 0
            fill.is_finite = True
            fill.keys = self._keys(fill.text, fill.adapter)

    def _keys(self, text: Sequence[int], adapter: str | None) -> list[Hashable]:
        return self._index.keys(text, adapter) if self._caching else []

    def length(self, slot: int) -> int:
        """Return the number of positions of a slot that hold something of use."""
        prompt = self._prompts.by_slot.get(slot)
        whole = CHUNK * len(self._index.of_slot(slot))
        return whole if prompt is None else max(whole, len(prompt.tokens))

    def admit(self) -> Admission | None:
        """Return the next reply that gets a slot; call again until it returns None."""
        first = self._prompts.first()
        if first is None or not self._free:
            return None
        if first.holders:
            return self._admit_copy(first, next(iter(first.free_holders or first.holders)))
        fill = self._fill_of_prompt.get(first)
        if fill is None:
            return self._admit_fill(first)
        slot, move = self._take_slot()
        self._clear(slot)
        reply = self._prompts.take(first)
        fill.followers[slot] = reply
        self._fill_of_follower[slot] = fill
        return Admission(slot, reply, move=move)

    def _admit_copy(self, prompt: EnginePrompt, source: int) -> Admission:
        self._stats.prompt_tokens_copied += len(prompt.tokens)
        keys = self._index.of_slot(source)[: len(prompt.tokens) // CHUNK]
        # Behind the prompt the source may hold a reply, which another turn may go on with.
        is_longer = len(self._index.of_slot(source)) > len(keys)
        if source in self._free and self._is_low(source) and not (is_longer and len(self._free) > 1):
            self._index.cut(source, len(keys))
            self._assign(source)
            return Admission(source, self._prompts.take(prompt), source)
        slot, move = self._take_slot(source)
        self._hold_copy(slot, prompt, keys)
        if not is_longer:
            self._free.make_oldest(source)
        return Admission(slot, self._prompts.take(prompt), source, move)

    def _is_low(self, slot: int) -> bool:
        """Whether a reply in a free slot makes a decode step no longer than in any other."""
        return not self._caching or slot in self._free.lowest_block()

    def _hold_copy(self, slot: int, prompt: EnginePrompt, keys: Sequence[Hashable]) -> None:
        """Record that a slot has received a whole prompt from another one with these chunks."""
        self._index.cut(slot)
        if keys:
            self._index.append(slot, prompt.adapter, keys)
        self._prompts.hold(slot, prompt)

    def _admit_fill(self, prompt: EnginePrompt) -> Admission:
        keys = self._keys(prompt.tokens, prompt.adapter)
        source, count = self._longest(keys, len(prompt.tokens))
        move = None
        # All that the source holds is needed for this text: no second slot has to hold it.
        extends = source in self._free and self._need(source) == math.inf
        extends = extends and len(self._index.of_slot(source)) == count
        if extends and self._is_low(source):
            slot = self._assign(source)
        else:
            slot, move = self._take_slot(source)
        start = CHUNK * count if slot == source else 0
        self._clear(slot)
        if start:
            self._index.append(slot, prompt.adapter, keys[:count])
        self._prompts.set_computing(prompt, True)
        reply = self._prompts.take(prompt)
        fill = Fill(slot, prompt.tokens, prompt.adapter, reply, prompt, keys, start=start)
        self._fills[slot] = self._fill_of_prompt[prompt] = fill
        self._stats.prompt_tokens_copied += start
        copies: list[Copy] = []
        self._catch_up(fill, copies)
        if extends and slot != source:
            self._free.make_oldest(source)
        return Admission(slot, reply, move=move, copies=copies)

    def _longest(self, keys: Sequence[Hashable], length: int, count: int = 0) -> tuple[int, int]:
        """Return a slot with the most chunks of a text of this length, at least one more than
        `count`, and their number; (-1, count) if there is none.

        At least the text's last token is computed, for the logits after it.
        """
        source = -1
        most = min(len(keys), (length - 1) // CHUNK)
        while count < most and (holder := self._index.holder(keys[count])) is not None:
            source = holder
            count += 1
        return source, count

    def continue_text(self, slot: int, reply: PendingReply, text: Sequence[int]) -> None:
        """Fill the slot of a reply in flight anew, with its text so far."""
        adapter = reply.ticket.request.adapter
        self._clear(slot)
        self._fills[slot] = Fill(slot, text, adapter, reply, None, self._keys(text, adapter))

    def _clear(self, slot: int) -> None:
        self._prompts.release(slot)
        self._index.cut(slot)

    def _take_slot(self, source: int = -1) -> tuple[int, SlotMove | None]:
        """Remove a slot from the free ones, and move what it holds to where less is lost, but not
        to the place of what is about to be copied from `source`.
        """
        victim = self._free.oldest(lambda slot: slot == source or self._need(slot) < math.inf)
        slot = min(self._free.lowest_block(), key=self._value)
        if not self._caching:
            is_needed = self._need(slot) < math.inf and victim is not None
            return self._assign(victim if is_needed and victim is not None else slot), None
        if victim is None:  # all others are needed
            victim = min(
                (other for other in self._free.all() if other != source), key=self._value, default=slot
            )
        move = None
        if slot != victim and self.length(slot):
            move = SlotMove(slot, victim, self.length(slot))
            self._clear(victim)
            prompt = self._prompts.by_slot.get(slot)
            self._index.move(slot, victim)
            if prompt is not None:
                self._prompts.hold(victim, prompt)
                self._prompts.release(slot)
            self._free.move_use(slot, victim)
        return self._assign(slot), move

    def _value(self, slot: int) -> tuple[float, int]:
        """Sorts free slots: what is needed later or by nobody is lost first, then what was used
        longest ago; without a cache, lower ones first.
        """
        return (-self._need(slot), self._free.used(slot) if self._caching else slot)

    def _need(self, slot: int) -> float:
        """Return the priority of the replies that wait for a slot's prompt, which no other slot
        holds; infinite without any.
        """
        prompt = self._prompts.by_slot.get(slot)
        return math.inf if prompt is None or len(prompt.holders) > 1 else prompt.priority

    @property
    def passes(self) -> int:
        """Largest number of passes over chunks before the next decode step."""
        return -(-len(self._fills) // TEXTS_PER_PASS)

    def next_pass(self, decoding: int) -> Pass | None:
        """Return the next chunks to compute, None if there are none or they wait for others.

        Args:
            decoding: replies that the pass delays.
        """
        copies: list[Copy] = []
        fills = list(islice(self._fills.values(), WINDOW))
        while fills:
            self._catch_up(fills[0], copies)
            width = self._chunk(fills[0]).width
            rows = 1 if self._token_budget is None else max(1, self._token_budget // width)
            chunks = self._gather(fills, width, rows, copies)
            idle = decoding == 0 or 2 * len(self._free) >= self._slots
            if len(chunks) == rows or idle or self._waited.get(width, 0) >= MAX_WAIT:
                self._waited[width] = 0
                return Pass(copies, chunks)
            fills = [fill for fill in fills if self._chunk(fill).width != width]
        return Pass(copies, []) if copies else None

    def _chunk(self, fill: Fill, start: int | None = None) -> TextChunk:
        begin = fill.start if start is None else start
        return next_chunk(fill.slot, fill.text, begin, fill.adapter, self._token_budget is None)

    def _gather(self, fills: list[Fill], width: int, rows: int, copies: list[Copy]) -> list[TextChunk]:
        """Return up to `rows` chunks of one width: of the first text, of those with the fewest
        tokens left, then further ones of the same texts.
        """
        chunks: list[TextChunk] = []
        members: list[Fill] = []
        computed: set[Hashable] = set()
        for fill in (fills[0], *sorted(fills[1:], key=lambda fill: fill.left)):
            if len(chunks) == rows:
                break
            self._catch_up(fill, copies)
            chunk = self._chunk(fill)
            key = self._key(fill, chunk)
            # What another row computes now is copied later.
            if chunk.width == width and key not in computed:
                chunks.append(chunk)
                members.append(fill)
                computed.add(key)
        for fill in members:
            end = fill.start + CHUNK
            while len(chunks) < rows and end < len(fill.text) and self._chunk(fill, end).width == width:
                chunks.append(self._chunk(fill, end))
                end += CHUNK
        return chunks

    def _key(self, fill: Fill, chunk: TextChunk) -> Hashable:
        """Return what is equal for equal chunks; a text's own where it cannot be shared."""
        number = chunk.start // CHUNK
        return fill.keys[number] if chunk.is_whole and number < len(fill.keys) else fill.slot

    def _catch_up(self, fill: Fill, copies: list[Copy]) -> None:
        """Take over the chunks of a text that another slot holds by now."""
        first = fill.start // CHUNK
        source, count = self._longest(fill.keys, len(fill.text), first)
        # A text with keys that are no numbers is not recorded, and takes no part.
        if source < 0 or not fill.is_finite:
            return
        copies.append(Copy(source, fill.slot, fill.start, count * CHUNK))
        self._index.append(fill.slot, fill.adapter, fill.keys[first:count])
        if fill.prompt is not None:
            self._stats.prompt_tokens_copied += count * CHUNK - fill.start
        fill.start = count * CHUNK
        if source in self._free:
            self._set_free(source)

    def computed(self, chunks: Sequence[TextChunk], finite: Sequence[bool]) -> list[Fill]:
        """Record that chunks were computed, and whether their keys are numbers; return the texts
        that are complete with them.
        """
        complete = []
        for chunk, is_finite in zip(chunks, finite, strict=True):
            fill = self._fills[chunk.slot]
            fill.start = chunk.end
            fill.is_finite &= is_finite
            if fill.prompt is not None:
                self._stats.prompt_tokens_computed += chunk.end - chunk.start
            if fill.is_finite and fill.keys and chunk.is_whole:
                self._index.append(fill.slot, fill.adapter, [fill.keys[chunk.start // CHUNK]])
            if chunk.is_last:
                complete.append(fill)
        for fill in complete:
            if fill.prompt is not None and fill.is_finite:
                self._prompts.hold(fill.slot, fill.prompt)
                for slot in fill.followers:
                    self._hold_copy(slot, fill.prompt, self._index.of_slot(fill.slot))
            self._stats.prompt_tokens_copied += len(fill.text) * len(fill.followers)
            self._end_fill(fill)
            if fill.reply is None:
                self._set_free(fill.slot)
        return complete

    def _end_fill(self, fill: Fill) -> None:
        del self._fills[fill.slot]
        if not fill.is_finite:  # the slot is cleared before its next use
            self._clear(fill.slot)
        for slot in fill.followers:
            del self._fill_of_follower[slot]
        if fill.prompt is not None:
            del self._fill_of_prompt[fill.prompt]
            self._prompts.set_computing(fill.prompt, False)

    def tick(self) -> None:
        """Count a decode step."""
        for width in {self._chunk(fill).width for fill in islice(self._fills.values(), WINDOW)}:
            self._waited[width] = self._waited.get(width, 0) + 1
