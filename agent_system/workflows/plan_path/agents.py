"""The two roles. Their wording is in `prompts.py`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from agent_system.agent import BaseAgent, Entry
from agent_system.projection import Projection, tag
from agent_system.registry import AgentRegistry
from agent_system.workflows.plan_path.options import PlanPathOptions
from agent_system.workflows.plan_path.prompts import CODE, STYLES
from agent_system.workflows.plan_path.rules import parse_moves
from agent_system.workflows.programs import read_program

TOOL = "Tool Agent"
EXECUTOR = "Executor Agent"

_read = tag("moves")


class PlanPathAgent(BaseAgent):
    """A role whose action is the last `<moves>` of its reply as letters (`RRD`), or empty when there is no list of moves."""

    def __init__(self, agent_id: str, config: Any = None) -> None:
        super().__init__(agent_id, config if isinstance(config, PlanPathOptions) else PlanPathOptions())
        self.style = CODE if self.config.tool == "code" else STYLES[self.config.prompt_style]

    def team_context(self, entries: Sequence[Entry]) -> str:
        return "\n\n".join(self.style.entry.format(role=entry.agent_id.split()[0], text=entry.text) for entry in entries)

    def project(self, text: str) -> Projection:
        found = _read(text)
        moves = parse_moves(found.action)
        return replace(found, action=moves or "", valid=moves is not None)


@AgentRegistry.register(TOOL, orchestra="plan_path")
class ToolAgent(PlanPathAgent):
    """Proposes the next moves; with `tool=code` its action is the last Python block of its reply, as a `Program`."""

    def __init__(self, agent_id: str = TOOL, config: Any = None) -> None:
        super().__init__(agent_id, config)
        self.prompt = self.style.tool

    def project(self, text: str) -> Projection:
        return read_program(text) if self.config.tool == "code" else super().project(text)


@AgentRegistry.register(EXECUTOR, orchestra="plan_path")
class ExecutorAgent(PlanPathAgent):
    """Checks the proposal and decides which moves are made."""

    def __init__(self, agent_id: str = EXECUTOR, config: Any = None) -> None:
        super().__init__(agent_id, config)
        self.prompt = self.style.executor
