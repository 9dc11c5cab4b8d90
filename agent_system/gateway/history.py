"""The answered conversations of one agent in one episode."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

from agent_system.gateway.view import View
from agent_system.rollout.prompt import Prompt
from verl.protocol.generate import Generation

MOST_TOOLS = 4


@dataclass(frozen=True, slots=True)
class Node:
    """An answered request.

    Attributes:
        prompt: what the engine got.
        generation: what it sampled.
        messages: the conversation with the reply, for the chat template, with the thinking of its replies.
        tools: its tools, in the order of their fields in which the prompt shows them.
    """

    prompt: Prompt
    generation: Generation
    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]] = ()


@dataclass
class History:
    """Finds the conversation that a request continues. Conversations are told apart by the keys of their
    views.

    Attributes:
        most: number of conversations that are kept, those answered last, each with its last `MOST_TOOLS`
            lists of tools; None: all.
    """

    most: int | None = None
    _nodes: dict[bytes, dict[str, Node]] = field(default_factory=dict)
    _asked: set[bytes] = field(default_factory=set)
    _replies: set[bytes] = field(default_factory=set)

    def add(self, views: Sequence[View], reply: View, tools: Sequence[Mapping[str, Any]], node: Node) -> None:
        """Keep an answered request."""
        *_, asked, answered = _prefixes([*views, reply])
        nodes = self._nodes.get(answered, {})
        _put(nodes, _tools_key(tools), node, None if self.most is None else MOST_TOOLS)
        _put(self._nodes, answered, nodes, self.most)
        if self.most is None:
            self._asked.add(asked)
            self._replies.add(reply.key)

    def find(self, views: Sequence[View], tools: Sequence[Mapping[str, Any]]) -> tuple[Node | None, int, str]:
        """Return the longest conversation that a request continues, the number of its messages, and why there
        is none.

        The reason is `tools` (the request has other tools), `client` (a reply was edited, invented or moved),
        or empty for a request that continues nothing.
        """
        prefixes, key = _prefixes(views), _tools_key(tools)
        for length in range(len(views), 0, -1):
            nodes = self._nodes.get(prefixes[length])
            if nodes is None:
                continue
            if any(view.role == "assistant" for view in views[length:]):
                return None, 0, "client"
            return (nodes[key], length, "") if key in nodes else (None, 0, "tools")
        spoken = [place for place, view in enumerate(views) if view.role == "assistant"]
        changed = any(prefixes[place] in self._asked or views[place].key in self._replies for place in spoken)
        return None, 0, "client" if changed else ""


def _put(entries: dict[Any, Any], key: object, value: object, most: int | None) -> None:
    """Set the last entry, and forget the first one if there are more than `most`."""
    entries.pop(key, None)
    entries[key] = value
    if most is not None and len(entries) > most:
        del entries[next(iter(entries))]


def _prefixes(views: Sequence[View]) -> list[bytes]:
    """Return a hash of every beginning of a conversation, from the empty one on."""
    found = [b""]
    for view in views:
        found.append(blake2b(found[-1] + view.key, digest_size=16).digest())
    return found


def _tools_key(tools: Sequence[Mapping[str, Any]]) -> str:
    return json.dumps(list(tools), sort_keys=True)
