"""The two roles. Their wording is in `prompts.py`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from agent_system.agent import BaseAgent, Entry
from agent_system.projection import Projection, tag
from agent_system.registry import AgentRegistry
from agent_system.workflows.programs import read_program
from agent_system.workflows.sokoban.options import SokobanOptions
from agent_system.workflows.sokoban.prompts import CODE, STYLES
from agent_system.workflows.sokoban.rules import parse_moves

TOOL = "Tool Agent"
EXECUTOR = "Executor Agent"

_read_tag = tag("moves")


def read_moves(text: str) -> Projection:
    """Take the moves of the last `<moves>...</moves>` as letters; anything else there, or nothing, is invalid and an empty action."""
    found = _read_tag(text)
    moves = parse_moves(found.action)
    return replace(found, action=moves or "", valid=moves is not None, fields={"moves": len(moves or "")})


def moves_reply(moves: str) -> str:
    """Return the reply that `read_moves` reads as `moves`."""
    return f"<moves>{' '.join(moves)}</moves>"


class SokobanAgent(BaseAgent):
    """A role that reads the proposal of this turn in the style that `prompt_style` names."""

    projection = read_moves

    def __init__(self, agent_id: str, config: Any = None) -> None:
        super().__init__(agent_id, config if isinstance(config, SokobanOptions) else SokobanOptions())
        self.style = CODE if self.config.tool == "code" else STYLES[self.config.prompt_style]

    def team_context(self, entries: Sequence[Entry]) -> str:
        style = self.style
        quoted = (style.entry.format(text=e.text, moves=" ".join(e.action) or style.no_moves) for e in entries)
        return "\n".join(quoted) or style.nobody_spoke


@AgentRegistry.register(TOOL, orchestra="sokoban")
class ToolAgent(SokobanAgent):
    """Proposes the next moves, or with `tool=code` writes a `Program` that prints them."""

    def __init__(self, agent_id: str = TOOL, config: Any = None) -> None:
        super().__init__(agent_id, config)
        self.prompt = self.style.tool

    def project(self, text: str) -> Projection:
        return read_program(text) if self.config.tool == "code" else super().project(text)


@AgentRegistry.register(EXECUTOR, orchestra="sokoban")
class ExecutorAgent(SokobanAgent):
    """Checks the proposal and says which moves are made."""

    def __init__(self, agent_id: str = EXECUTOR, config: Any = None) -> None:
        super().__init__(agent_id, config)
        self.prompt = self.style.executor
