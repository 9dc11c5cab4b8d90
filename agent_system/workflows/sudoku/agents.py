"""The two roles. Their wording is in `prompts.py`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agent_system.agent import BaseAgent, Entry
from agent_system.projection import Projection, tag
from agent_system.registry import AgentRegistry
from agent_system.workflows.programs import read_program
from agent_system.workflows.sudoku.options import SudokuOptions
from agent_system.workflows.sudoku.prompts import CODE, STYLES

TOOL = "Tool Agent"
EXECUTOR = "Executor Agent"


class SudokuAgent(BaseAgent):
    """A role that reads what was said in this turn, in the style that `prompt_style` names."""

    def __init__(self, agent_id: str, config: Any = None) -> None:
        super().__init__(agent_id, config if isinstance(config, SudokuOptions) else SudokuOptions())
        self.style = CODE if self.config.tool == "code" else STYLES[self.config.prompt_style]

    def team_context(self, entries: Sequence[Entry]) -> str:
        quoted = (self.style.entry.format(role=entry.agent_id.split()[0], text=entry.text) for entry in entries)
        return self.style.separator.join(quoted) or self.style.nobody_spoke


@AgentRegistry.register(TOOL, orchestra="sudoku")
class ToolAgent(SudokuAgent):
    """Proposes cells or a grid in `<plan>...</plan>`, or with `tool=code` a `Program` that prints them; it writes nothing itself."""

    projection = tag("plan")

    def __init__(self, agent_id: str = TOOL, config: Any = None) -> None:
        super().__init__(agent_id, config)
        self.prompt = self.style.tool

    def project(self, text: str) -> Projection:
        return read_program(text) if self.config.tool == "code" else super().project(text)


@AgentRegistry.register(EXECUTOR, orchestra="sudoku")
class ExecutorAgent(SudokuAgent):
    """Reads the plan and writes cells or a grid in `<action>...</action>`."""

    projection = tag("action")

    def __init__(self, agent_id: str = EXECUTOR, config: Any = None) -> None:
        super().__init__(agent_id, config)
        self.prompt = self.style.executor
