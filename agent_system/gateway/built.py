"""The prompt of a request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agent_system.gateway.view import View
from agent_system.rollout.prompt import Prompt


@dataclass(frozen=True, slots=True)
class Built:
    """The prompt of a request.

    Attributes:
        prompt: what the engine gets.
        views: the messages of the request.
        messages: the same for the chat template: with the thinking of replies that were sampled here.
        rewritten: why sampled tokens were rendered anew: `client`, `template` or `tools`; empty where none
            were.
        why: what the template shows in another way, in words; empty for other reasons.
    """

    prompt: Prompt
    views: Sequence[View]
    messages: Sequence[Mapping[str, Any]]
    rewritten: str = ""
    why: str = ""
