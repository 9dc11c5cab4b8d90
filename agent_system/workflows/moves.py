"""Moves of a walker as text: up, down, left, right."""

from __future__ import annotations

import re
from dataclasses import replace

from agent_system.projection import Projection, tag

LONGEST_MOVES = 2000

_WORDS = {"UP": "U", "DOWN": "D", "LEFT": "L", "RIGHT": "R"}
_SEPARATORS = re.compile(r"[\s,;\"'\[\]()]+")
_read_tag = tag("moves")


def parse_moves(text: object) -> str | None:
    """Return the moves as letters (`RRD`), or None when `text` is not a list of moves.

    Letters U D L R or the words up, down, left, right in any case, with or without separators:
    `RRD`, `R, R, D`, `["R", "R", "D"]`. An empty list, a list with anything else in it, and a text
    of more than 2,000 characters return None.
    """
    if not isinstance(text, str) or len(text) > LONGEST_MOVES:
        return None
    letters = "".join(_WORDS.get(part, part) for part in _SEPARATORS.split(text.upper()))
    return letters if letters and set(letters) <= set("UDLR") else None


def read_moves(text: str) -> Projection:
    """Return the last `<moves>...</moves>` of a reply as letters (`RRD`); a reply without a list of
    moves is invalid, its action empty.
    """
    projection = _read_tag(text)
    moves = parse_moves(projection.action)
    return replace(projection, action=moves or "", valid=moves is not None)


def moves_reply(moves: str) -> str:
    """Return the reply that `read_moves` parses as `moves`, separated by spaces:
    `<moves>R R D</moves>`.
    """
    return f"<moves>{' '.join(moves)}</moves>"
