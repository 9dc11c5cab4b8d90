"""The agents of a team file."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from agent_system.agent import BaseAgent, Entry, render_entries
from agent_system.memory import Memory, SearchMemory, SimpleMemory, SummaryMemory
from agent_system.projection import (
    Projection,
    Projector,
    boxed_answer,
    code_block,
    number,
    python_block,
    raw_text,
    tag,
    verdict,
)
from agent_system.registry import AgentRegistry
from agent_system.workflows.graph.checks import class_of
from agent_system.workflows.graph.schema import AgentAnswer, AgentSpec, Quote, VerdictAnswer

PLAIN: Mapping[str, Projector] = {
    "text": raw_text,
    "boxed": boxed_answer,
    "number": number,
    "python": python_block,
}


class NoMemory(Memory):
    """Memory that shows nothing."""

    @property
    def parts(self) -> int:
        """None."""
        return 0

    def text(self, drop: int = 0) -> str:
        """Return an empty text."""
        del drop
        return ""


MEMORIES: Mapping[str, type[Memory]] = {
    "none": NoMemory,
    "simple": SimpleMemory,
    "search": SearchMemory,
    "summary": SummaryMemory,
}


class GraphAgent(BaseAgent):
    """An agent of a team file that has no class of its own; `config` is its `AgentSpec`."""

    config: AgentSpec

    def __init__(self, agent_id: str, config: AgentSpec) -> None:
        super().__init__(agent_id, config)
        self.prompt = config.prompt or ""
        self.system = config.system
        self._read = projector(config.answer)
        adapt(self, config)

    def project(self, text: str) -> Projection:
        return self._read(text)

    def team_context(self, entries: Sequence[Entry]) -> str:
        return quoted(self.config.quote, entries)


def quoted(quote: Quote | None, entries: Sequence[Entry]) -> str:
    """Return replies as a prompt quotes them."""
    if quote is None:
        return render_entries(entries)
    texts = (
        quote.entry.format(
            agent=entry.agent_id, role=entry.agent_id.split()[0], text=entry.text, action=entry.action
        )
        for entry in entries[-quote.last if quote.last else 0 :]
    )
    # replies may be shown as nothing, such as the actions of invalid ones
    return quote.separator.join(texts) if entries else quote.empty


def adapt(agent: BaseAgent, spec: AgentSpec) -> None:
    """Set what an agent of any class has by the file: its name for the environment, and its memory."""
    agent.acts_as = spec.as_
    if spec.memory != "none":
        agent.memory_class = MEMORIES[spec.memory]


def make_of_class(agent_id: str, spec: AgentSpec, config: Any, env_name: str) -> BaseAgent:
    """Return an agent of a registered class, made with the options of its workflow.

    Raises AgentSystemError for a name that is not registered.
    """
    workflow, name = class_of(spec)
    agent = AgentRegistry.get(name, orchestra=workflow, env=env_name)(agent_id, config)
    if spec.prompt is not None:
        agent.prompt = spec.prompt
    if spec.system is not None:
        agent.system = spec.system
    adapt(agent, spec)
    return agent


def projector(answer: AgentAnswer) -> Projector:
    """Return the projection of an answer."""
    match answer.kind:
        case "tag":
            return tag(answer.tag)
        case "verdict":
            return _verdict(answer.verdict)
        case "code":
            return code_block(*answer.code)
        case "choice":
            return _choice(answer.choice)
    return PLAIN[answer.kind]


def _verdict(answer: VerdictAnswer) -> Projector:
    """Return a projection to a verdict, whose action is empty where a reply has none."""
    read = verdict(
        answer.tag, approve=tuple(answer.approve), reject=tuple(answer.reject), fallback=answer.fallback
    )

    def project(text: str) -> Projection:
        projection = read(text)
        return projection if projection.fields["parsed"] else replace(projection, action="")

    return project


def _choice(choices: Sequence[str]) -> Projector:
    """Return a projection to the last of these words, in any case."""
    by_folded = {choice.casefold(): choice for choice in choices}
    longest_first = sorted(choices, key=len, reverse=True)
    pattern = re.compile(rf"(?<!\w)(?:{'|'.join(map(re.escape, longest_first))})(?!\w)", re.IGNORECASE)

    def project(text: str) -> Projection:
        visible = raw_text(text).text
        words = pattern.findall(visible)
        action = by_folded.get(words[-1].casefold(), "") if words else ""
        return Projection(action, bool(action), text=visible)

    return project
