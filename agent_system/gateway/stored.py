"""What later requests to `/v1/responses` name by an id: conversations, and items of answers."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

MOST_ANSWERS, MOST_ITEMS = 1024, 8192


class Recent(OrderedDict[str, Any]):
    """Forgets the oldest entries."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def __setitem__(self, name: str, value: Any) -> None:
        super().__setitem__(name, value)
        if len(self) > self._most:
            self.popitem(last=False)


@dataclass
class Stored:
    """The last answers of an episode, or of a served team.

    Attributes:
        conversations: messages by the ids of answers, for `previous_response_id`.
        items: items of answers by their ids, for `item_reference`.
    """

    conversations: dict[str, list[Any]] = field(default_factory=lambda: Recent(MOST_ANSWERS))
    items: dict[str, Mapping[str, Any]] = field(default_factory=lambda: Recent(MOST_ITEMS))

    def add(self, answer: Mapping[str, Any], conversation: Sequence[Any]) -> None:
        """Keep an answer, the object `response`, with the messages of its request and itself."""
        self.conversations[answer["id"]] = list(conversation)
        for item in answer["output"]:
            self.items[item["id"]] = item
