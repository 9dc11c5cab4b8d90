"""Errors that a workflow's author or user can act on."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class AgentSystemError(ValueError):
    """A workflow, agent or environment is set up in a way that cannot run."""


def suggestion(name: str, known: Iterable[str]) -> str:
    """Return `; did you mean 'x'?` for the name nearest to `name`, or an empty string."""
    by_folded = {k.lower(): k for k in known}
    near = difflib.get_close_matches(name.lower(), by_folded, n=1, cutoff=0.5)
    return f"; did you mean {by_folded[near[0]]!r}?" if near else ""
