"""The three roles. Their wording is in `prompts.py`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from agent_system.agent import BaseAgent, Entry
from agent_system.projection import Projection, tag, verdict
from agent_system.registry import AgentRegistry
from agent_system.workflows.search.options import NO, YES, SearchOptions
from agent_system.workflows.search.prompts import STYLES

VERIFIER = "Verifier Agent"
SEARCH = "Search Agent"
ANSWER = "Answer Agent"


class Query(str):
    """An action that is a search: the environment asks for passages and takes anything else for an answer."""

    __slots__ = ()


class SearchWorkflowAgent(BaseAgent):
    """A role that reads question, searches and, where its prompt shows it, what was said in this turn."""

    def __init__(self, agent_id: str, config: Any = None) -> None:
        super().__init__(agent_id, config if isinstance(config, SearchOptions) else SearchOptions())
        self.style = STYLES[self.config.prompt_style]

    def team_context(self, entries: Sequence[Entry]) -> str:
        quoted = (self.style.entry.format(role=entry.agent_id.split()[0], text=entry.text) for entry in entries)
        return self.style.separator.join(quoted) or self.style.nobody_spoke


@AgentRegistry.register(VERIFIER, orchestra="search")
class VerifierAgent(SearchWorkflowAgent):
    """Decides whether what is known suffices.

    Its action is `yes`, `no`, or empty when no verdict could be read: then `fields["enough"]` holds the fallback.
    """

    def __init__(self, agent_id: str = VERIFIER, config: Any = None) -> None:
        super().__init__(agent_id, config)
        self.prompt = self.style.verifier
        fallback = "approve" if self.config.verdict_fallback == YES else "reject"
        self._read = verdict("verify", approve=(YES,), reject=(NO,), fallback=fallback)

    def project(self, text: str) -> Projection:
        found = self._read(text)
        enough = found.fields["approved"]
        action = (YES if enough else NO) if found.fields["parsed"] else ""
        return replace(found, action=action, fields={"enough": enough, "parsed": found.fields["parsed"]})


@AgentRegistry.register(SEARCH, orchestra="search")
class SearchAgent(SearchWorkflowAgent):
    """Writes a query; its action is a `Query`, empty when there was none."""

    def __init__(self, agent_id: str = SEARCH, config: Any = None) -> None:
        super().__init__(agent_id, config)
        self.prompt = self.style.search
        self._read = tag("search")

    def project(self, text: str) -> Projection:
        found = self._read(text)
        return replace(found, action=Query(found.action))


@AgentRegistry.register(ANSWER, orchestra="search")
class AnswerAgent(SearchWorkflowAgent):
    """Answers the question; its action is the answer, empty when there was none."""

    projection = tag("answer")

    def __init__(self, agent_id: str = ANSWER, config: Any = None) -> None:
        super().__init__(agent_id, config)
        self.prompt = self.style.answer
