"""Seeds that depend on what is sampled, not on the order of sampling."""

from __future__ import annotations

from hashlib import blake2b


def stable_seed(*parts: int | str | bool) -> int:
    """Return a seed in [0, 2**63) that depends only on `parts`, in every process and Python
    version.
    """
    text = "\x1f".join([f"{type(p).__name__}:{p}" for p in parts])
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big") >> 1
