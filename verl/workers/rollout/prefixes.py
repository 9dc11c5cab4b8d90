"""Which slot holds the keys of which beginnings of texts.

A beginning is a number of whole chunks. Its key is the last link of a chain of digests over its
chunks, together with the adapter under which they were computed and a count of the weights that
were loaded: keys of other weights are never found, even where a version number comes again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Iterable, Sequence

import numpy as np

from verl.workers.rollout.chunks import CHUNK

DIGEST_BYTES = 16


class PrefixIndex:
    """Keys of the chunks that slots hold, without gaps from the beginning of their texts."""

    def __init__(self) -> None:
        self._of_slots: dict[int, list[Hashable]] = {}
        self._adapters: dict[int, str | None] = {}
        self._holders: dict[Hashable, dict[int, None]] = {}
        self._loads: dict[str | None, int] = {}

    def keys(self, text: Sequence[int], adapter: str | None) -> list[Hashable]:
        """Return the key of every whole chunk of a text under the present weights."""
        root = (adapter, self._loads.get(None, 0), self._loads.get(adapter, 0))
        tokens = np.asarray(text, dtype=np.int64)
        chain: list[Hashable] = []
        digest = b""
        for start in range(0, len(tokens) - CHUNK + 1, CHUNK):
            link = digest + tokens[start : start + CHUNK].tobytes()
            digest = hashlib.blake2b(link, digest_size=DIGEST_BYTES).digest()
            chain.append((root, digest))
        return chain

    def of_slot(self, slot: int) -> Sequence[Hashable]:
        """Return the keys of the chunks that a slot holds."""
        return self._of_slots.get(slot, ())

    def holder(self, key: Hashable) -> int | None:
        """Return a slot with this chunk and all before it."""
        return next(iter(self._holders.get(key, ())), None)

    def append(self, slot: int, adapter: str | None, keys: Iterable[Hashable]) -> None:
        """Record that a slot holds these chunks behind those that it holds already."""
        chain = self._of_slots.setdefault(slot, [])
        self._adapters[slot] = adapter
        for key in keys:
            chain.append(key)
            self._holders.setdefault(key, {})[slot] = None

    def cut(self, slot: int, count: int = 0) -> None:
        """Record that a slot holds no more than its first `count` chunks."""
        chain = self._of_slots.get(slot, [])
        for key in chain[count:]:
            del self._holders[key][slot]
            if not self._holders[key]:
                del self._holders[key]
        del chain[count:]
        if not chain:
            self._of_slots.pop(slot, None)
            self._adapters.pop(slot, None)

    def move(self, source: int, target: int) -> None:
        """Record that a slot has the chunks of another one, which loses them."""
        chain = list(self.of_slot(source))
        adapter = self._adapters.get(source)
        self.cut(source)
        self.cut(target)
        if chain:
            self.append(target, adapter, chain)

    def forget(self, adapter: str | None) -> None:
        """Drop what was computed under an adapter whose weights have changed; for None, those of
        the model itself, everything.
        """
        self._loads[adapter] = self._loads.get(adapter, 0) + 1
        for slot in [slot for slot, name in self._adapters.items() if adapter is None or name == adapter]:
            self.cut(slot)
