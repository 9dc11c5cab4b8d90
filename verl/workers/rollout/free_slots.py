"""Free slots of an engine, by number and by last use; no operation looks at all of them."""

from __future__ import annotations

import heapq
from collections.abc import Callable


class FreeSlots:
    """At first all of `slots` slots, the lower ones used longer ago.

    Args:
        slots: number of slots.
        block: number of slots by which the rows of a decode step grow.
    """

    def __init__(self, slots: int, block: int) -> None:
        self._block = block
        # when a slot was used last, as numbers that grow
        self._used = {slot: slot - slots for slot in range(slots)}
        self._next = 0
        self._oldest = -slots
        # Both may have entries that no longer hold; they are dropped when they come first.
        self._by_use = [(time, slot) for slot, time in self._used.items()]
        self._by_number = list(range(slots))
        self._most = 4 * slots + 64

    def __len__(self) -> int:
        return len(self._used)

    def __contains__(self, slot: int) -> bool:
        return slot in self._used

    def add(self, slot: int) -> None:
        """Add a slot that was used just now, or record that a free one was."""
        if slot not in self._used:
            heapq.heappush(self._by_number, slot)
        self._set(slot, self._next)
        self._next += 1

    def remove(self, slot: int) -> None:
        """Remove a slot."""
        del self._used[slot]

    def make_oldest(self, slot: int) -> None:
        """Let a slot, if it is free, count as the one that was used longest ago."""
        if slot in self._used:
            self._oldest -= 1
            self._set(slot, self._oldest)

    def move_use(self, source: int, target: int) -> None:
        """Let one free slot count as used when another one was."""
        self._set(target, self._used[source])

    def _set(self, slot: int, time: int) -> None:
        self._used[slot] = time
        heapq.heappush(self._by_use, (time, slot))
        # Entries below the first are dropped here, which a use that always takes the first never does.
        if max(len(self._by_use), len(self._by_number)) > self._most:
            self._by_use = sorted((time, slot) for slot, time in self._used.items())
            self._by_number = sorted(self._used)

    def used(self, slot: int) -> int:
        """Return a number that is higher for slots that were used later."""
        return self._used[slot]

    def lowest_block(self) -> list[int]:
        """Return the free slots of the lowest block that has any."""
        while self._by_number and self._by_number[0] not in self._used:
            heapq.heappop(self._by_number)
        if not self._by_number:
            return []
        start = self._by_number[0] // self._block * self._block
        return [slot for slot in range(start, start + self._block) if slot in self._used]

    def oldest(self, is_needed: Callable[[int], bool]) -> int | None:
        """Return the slot that was used longest ago among those that are not needed."""
        passed = []
        slot = None
        while self._by_use and slot is None:
            time, first = self._by_use[0]
            if self._used.get(first) != time:
                heapq.heappop(self._by_use)
            elif is_needed(first):
                passed.append(heapq.heappop(self._by_use))
            else:
                slot = first
        for entry in passed:
            heapq.heappush(self._by_use, entry)
        return slot

    def all(self) -> list[int]:
        """Return all of them."""
        return list(self._used)
